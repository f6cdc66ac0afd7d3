// The checks of a history find what they are for, and nothing else.
#include "support/history.h"

#include <gtest/gtest.h>

namespace mooncake::testing {
namespace {

constexpr HistoryRules kStrict{.limit_ms = 100};
constexpr HistoryRules kLossy{.limit_ms = 100, .losses = true, .failures = true};

class Story {
 public:
  size_t Begin(OpKind kind, uint64_t version = 0) {
    return history_.Begin(kind, "k", "n1:1", version, now_ms_);
  }
  void End(size_t number, OpResult result = OpResult::kOk) {
    history_.End(number, result, now_ms_);
  }
  void Put(uint64_t version, OpResult result = OpResult::kOk) {
    End(Begin(OpKind::kPut, version), result);
  }
  void Get(uint64_t version) {
    const size_t get = Begin(OpKind::kGet);
    history_.SetVersion(get, version);
    End(get);
  }
  void Miss() { End(Begin(OpKind::kGet), OpResult::kMissing); }
  void Exist() { End(Begin(OpKind::kExist)); }
  void Remove() { End(Begin(OpKind::kRemove)); }
  void Stop(const std::string& node = "n2:1") { history_.Disturb(node, now_ms_); }
  void Pass(uint64_t ms) { now_ms_ += ms; }
  // The beginning of the first problem; empty: none.
  std::string Check(const HistoryRules& rules) {
    std::string trace;
    const std::vector<std::string> problems = history_.Check(rules, &trace);
    EXPECT_EQ(problems.empty(), trace.empty());
    return problems.empty() ? "" : problems[0].substr(0, problems[0].find(':'));
  }

 private:
  History history_;
  uint64_t now_ms_ = 0;
};

TEST(History, AcceptsWhatOneRegisterCanDo) {
  Story story;
  story.Miss();
  story.Put(1);
  story.Get(1);
  story.Exist();
  story.Put(2);
  story.Get(2);
  story.Remove();
  story.Miss();
  EXPECT_EQ(story.Check(kStrict), "");
}

TEST(History, SeesAValueThatNobodyHasPut) {
  Story story;
  story.Put(1);
  story.Get(2);
  story.Put(2);
  EXPECT_EQ(story.Check(kLossy), "read a value that nobody had put");
}

TEST(History, SeesAnOldValueAfterAnOverwriteOrARemove) {
  Story overwritten;
  overwritten.Put(1);
  overwritten.Put(2);
  overwritten.Get(1);
  EXPECT_EQ(overwritten.Check(kLossy), "read an old value");
  Story removed;
  removed.Put(1);
  removed.Remove();
  removed.Get(1);
  EXPECT_EQ(removed.Check(kLossy), "read an old value");
  Story missed;
  missed.Put(1);
  missed.Miss();
  missed.Get(1);
  EXPECT_EQ(missed.Check(kStrict), "missed a value");
  EXPECT_EQ(missed.Check(kLossy), "");
  Story again;
  again.Put(1);
  again.Put(2, OpResult::kFailed);
  again.Get(2);
  again.Get(1);
  EXPECT_EQ(again.Check(kLossy), "read an old value");
}

TEST(History, AllowsEitherOrderOfWhatHappensAtOnce) {
  Story story;
  const size_t first = story.Begin(OpKind::kPut, 1);
  story.Put(2);
  story.Get(2);
  story.End(first);
  story.Get(1);
  EXPECT_EQ(story.Check(kStrict), "");
}

TEST(History, AllowsTheLateEffectOfAFailureUpToTheLimit) {
  Story late;
  late.Put(1, OpResult::kFailed);
  late.Pass(50);
  late.Put(2);
  late.Get(1);
  EXPECT_EQ(late.Check(kLossy), "");
  Story too_late;
  too_late.Put(1, OpResult::kFailed);
  too_late.Pass(101);
  too_late.Put(2);
  too_late.Get(1);
  EXPECT_EQ(too_late.Check(kLossy), "read an old value");
}

TEST(History, AllowsWhatANodeForgotThatStoppedRightAfter) {
  Story story;
  story.Put(1);
  story.Put(2);
  story.Pass(1);
  story.Stop();
  story.Get(1);
  EXPECT_EQ(story.Check(kLossy), "");
  story.Put(3);
  story.Pass(1'000);
  story.Stop();
  story.Get(1);
  EXPECT_EQ(story.Check(kLossy), "read an old value");
}

TEST(History, SeesAMissWhereNothingMayBeLost) {
  Story story;
  story.Put(1);
  story.Miss();
  EXPECT_EQ(story.Check(kLossy), "");
  EXPECT_EQ(story.Check(kStrict), "missed a value");
}

TEST(History, SeesAPutIfAbsentThatReplacedAValue) {
  const auto put_if_absent = [](Story& story, uint64_t version) {
    story.End(story.Begin(OpKind::kPutIfAbsent, version));
  };
  Story story;
  story.Put(1);
  put_if_absent(story, 2);
  story.Get(2);
  EXPECT_EQ(story.Check(kStrict), "put over a value that was there");
  EXPECT_EQ(story.Check(kLossy), "");
  Story absent;
  absent.Put(1);
  absent.Remove();
  put_if_absent(absent, 2);
  absent.Get(2);
  put_if_absent(absent, 3);
  absent.Get(2);
  EXPECT_EQ(absent.Check(kStrict), "");
}

TEST(History, SeesAKeyThatExistsAfterItsRemove) {
  Story story;
  story.Put(1);
  story.Remove();
  story.Exist();
  EXPECT_EQ(story.Check(kLossy), "saw a key that was gone");
}

TEST(History, SeesAFailureWhereNoneMayBe) {
  Story story;
  story.Put(1, OpResult::kFailed);
  EXPECT_EQ(story.Check(kLossy), "");
  EXPECT_EQ(story.Check(kStrict), "failed");
}

TEST(History, SeesACallThatTakesTooLongUnlessItsNodeStandsStill) {
  constexpr HistoryRules kBounded{.limit_ms = 100, .took_ms_max = 50};
  for (const char* stopped : {"n2:1", "n1:1"}) {
    Story story;
    const size_t get = story.Begin(OpKind::kExist);
    story.Stop(stopped);
    story.Pass(51);
    story.End(get, OpResult::kMissing);
    EXPECT_EQ(story.Check(kBounded), stopped[1] == '1' ? "" : "took too long");
  }
}

TEST(History, EveryByteOfAValueCounts) {
  const std::string value = PutValueOf("k", 7, 100);
  EXPECT_EQ(VersionIn("k", value, 100), 7u);
  EXPECT_FALSE(VersionIn("other", value, 100).has_value());
  EXPECT_FALSE(VersionIn("k", value.substr(0, value.size() - 1), 100).has_value());
  for (size_t i = 8; i < value.size(); ++i) {
    std::string wrong = value;
    wrong[i] = static_cast<char>(wrong[i] ^ 1);
    EXPECT_FALSE(VersionIn("k", wrong, 100).has_value()) << i;
  }
}

}  // namespace
}  // namespace mooncake::testing

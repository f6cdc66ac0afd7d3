#include "node/types.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mooncake::node {
namespace {

TEST(NameTable, KnowsItselfAsZeroAndKeepsNumbers) {
  NameTable names("self:1");
  EXPECT_EQ(names.IndexOf("self:1"), kSelf);
  const auto b = names.IndexOf("b:1");
  const auto later = names.IndexOf("b:2");
  ASSERT_TRUE(b && later);
  EXPECT_NE(*b, *later);
  EXPECT_EQ(names.IndexOf("b:1"), b);
  EXPECT_EQ(names.NameOf(*b), "b:1");
  EXPECT_EQ(names.NameOf(99), "");
}

TEST(NameTable, RefusesEmptyAndOverlongNames) {
  NameTable names("self:1");
  EXPECT_FALSE(names.IndexOf(""));
  EXPECT_FALSE(names.IndexOf(std::string(513, 'x')));
  EXPECT_TRUE(names.IndexOf(std::string(512, 'x')));
}

TEST(NameTable, GivesEachNameOneNumberToAllThreads) {
  NameTable names("self:1");
  std::vector<std::vector<NameIndex>> seen(4, std::vector<NameIndex>(200));
  std::vector<std::thread> threads;
  for (auto& mine : seen) {
    threads.emplace_back([&] {
      for (size_t i = 0; i < mine.size(); ++i) mine[i] = *names.IndexOf("n" + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : seen) EXPECT_EQ(mine, seen[0]);
  for (size_t i = 0; i < seen[0].size(); ++i) {
    EXPECT_EQ(names.NameOf(seen[0][i]), "n" + std::to_string(i));
  }
}

TEST(NameTable, HoldsABoundedNumberOfBytes) {
  NameTable names("self:1");
  size_t bytes = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    std::string name = std::to_string(i) + std::string(500, 'x');
    if (!names.IndexOf(name)) break;
    bytes += name.size();
  }
  EXPECT_LE(bytes, 64u << 20);
  EXPECT_GE(bytes, 60u << 20);
  EXPECT_TRUE(names.IndexOf("self:1"));
  EXPECT_FALSE(names.Find("another:1"));
  EXPECT_EQ(names.Find("self:1"), kSelf);
}

TEST(ScopeTable, HoldsABoundedNumberOfBytes) {
  ScopeTable scopes;
  const auto first = scopes.Intern({"t", "d", "o"});
  const auto large = [](int i) {
    return routing::Scope{std::to_string(i), std::string(kScopeSizeMax - 20, 'd'), "o"};
  };
  int count = 0;
  while (count < 1'000'000 && scopes.Intern(large(count))) ++count;
  EXPECT_LE(count * kScopeSizeMax, 66u << 20);
  EXPECT_GE(count * kScopeSizeMax, 60u << 20);
  EXPECT_EQ(scopes.Intern({"t", "d", "o"})->index, first->index);
}

TEST(ScopeTable, ALookAddsNothing) {
  ScopeTable scopes;
  const auto known = scopes.Intern({"t", "d", "o"});
  EXPECT_EQ(scopes.Look({"t", "d", "o"})->index, known->index);
  const auto other = scopes.Look({"other", "d", "o"});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->index, kNoScope);
  EXPECT_EQ(scopes.size(), 1u);
  EXPECT_EQ(other->seed, scopes.Intern({"other", "d", "o"})->seed);
  EXPECT_FALSE(scopes.Look({std::string(kScopeSizeMax, 'x'), "d", "o"}));
}

TEST(ScopeTable, TellsFieldsApartWhateverTheirSpelling) {
  ScopeTable scopes;
  const auto ab_c = scopes.Intern({"ab", "c", "d"});
  const auto a_bc = scopes.Intern({"a", "bc", "d"});
  ASSERT_TRUE(ab_c && a_bc);
  EXPECT_NE(ab_c->index, a_bc->index);
  EXPECT_NE(ab_c->seed, a_bc->seed);
  EXPECT_EQ(scopes.Intern({"ab", "c", "d"})->index, ab_c->index);
  EXPECT_EQ(scopes.ScopeOf(a_bc->index), (routing::Scope{"a", "bc", "d"}));
  EXPECT_EQ(scopes.ScopeOf(77), routing::Scope{});
}

TEST(ScopeTable, RefusesFieldsThatNoCallerHas) {
  ScopeTable scopes;
  EXPECT_FALSE(scopes.Intern({std::string(kScopeSizeMax, 'x'), "d", "o"}));
  EXPECT_TRUE(scopes.Intern({std::string(kScopeSizeMax / 2, 'x'), "d", "o"}));
}

TEST(ErrorCodeOf, KeepsTheCodesOfTheTableAndMakesOthersUnspecified) {
  for (ErrorCode code : {ErrorCode::kOk, ErrorCode::kNotFound, ErrorCode::kTransport,
                         ErrorCode::kChecksum, ErrorCode::kTooSmall, ErrorCode::kNoSpace}) {
    EXPECT_EQ(ErrorCodeOf(CodeOf(code)), code);
  }
  EXPECT_EQ(ErrorCodeOf(kItemRetryLater), ErrorCode::kTransport);
  EXPECT_EQ(ErrorCodeOf(kItemWrongAuthority), ErrorCode::kTransport);
  for (ItemCode unknown : {1, 5, -8, -12, -999, 1 << 30}) {
    EXPECT_EQ(ErrorCodeOf(unknown), ErrorCode::kNotFound) << unknown;
  }
}

TEST(ParseNodeName, TakesTheLastColon) {
  EXPECT_EQ(*ParseNodeName("a:b:7"), (NodeId{"a:b", 7}));
  EXPECT_EQ(*ParseNodeName("n:18446744073709551615"), (NodeId{"n", ~uint64_t{0}}));
  for (const char* bad :
       {"", "a", ":1", "a:", "a:x", "a:1x", "a: 1", "a:-1", "a:18446744073709551616"}) {
    EXPECT_EQ(ParseNodeName(bad).code(), ErrorCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace mooncake::node

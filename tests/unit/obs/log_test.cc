#include "obs/log.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>

#include "obs/rate_limiter.h"
#include "runtime/real_runtime.h"

namespace mooncake::obs {
namespace {

// What `body` writes to stderr.
std::string ErrorOutputOf(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

class Log : public testing::Test {
 protected:
  void TearDown() override { SetLogLevel(LogLevel::kInfo); }
};

TEST_F(Log, WritesOneLineToStderrAndNothingToStdout) {
  testing::internal::CaptureStdout();
  const std::string output = ErrorOutputOf([] { LogWarning("disk {} is slow"); });
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
  EXPECT_TRUE(output.ends_with(" W mooncake: disk {} is slow\n")) << output;
  EXPECT_EQ(CountOf(output, "\n"), 1u);
}

TEST_F(Log, DropsWhatIsBelowTheLevel) {
  for (LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError, LogLevel::kOff}) {
    SetLogLevel(level);
    EXPECT_EQ(GetLogLevel(), level);
  }
  SetLogLevel(LogLevel::kError);
  EXPECT_EQ(ErrorOutputOf([] { LogWarning("no"); }), "");
  EXPECT_NE(ErrorOutputOf([] { LogError("yes"); }), "");
  SetLogLevel(LogLevel::kOff);
  EXPECT_EQ(ErrorOutputOf([] { LogError("no"); }), "");
}

TEST_F(Log, TextCannotForgeALine) {
  const std::string output = ErrorOutputOf([] { LogInfo("key a\nE mooncake: b\r"); });
  EXPECT_EQ(CountOf(output, "\n"), 1u);
  EXPECT_EQ(CountOf(output, "\r"), 0u);
}

TEST_F(Log, WorksInAForkedChild) {
  const std::string output = ErrorOutputOf([] {
    const pid_t child = fork();
    if (child == 0) {
      LogInfo("from the child");
      LogRateLimited(LogLevel::kInfo, "test.child", "limited");
      _exit(0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
  EXPECT_EQ(CountOf(output, "from the child"), 1u);
  EXPECT_EQ(CountOf(output, "test.child: limited"), 1u);
}

TEST_F(Log, LinesOfManyThreadsDoNotMix) {
  const std::string output = ErrorOutputOf([] {
    runtime::RealRuntime runtime;
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(runtime.Spawn("logger", [] {
        for (int n = 0; n < 50; ++n) LogInfo("a line of some length");
      }));
    }
  });
  EXPECT_EQ(CountOf(output, " I mooncake: a line of some length\n"), 200u);
}

TEST_F(Log, RateLimitedLetsTheFirstOfAKindOut) {
  const std::string output = ErrorOutputOf([] {
    for (int i = 0; i < 100; ++i) LogRateLimited(LogLevel::kError, "test.flood", "again");
  });
  EXPECT_GE(CountOf(output, "test.flood: again"), 1u);
  EXPECT_LT(CountOf(output, "test.flood: again"), 60u);  // Fewer unless it takes a minute.
}

TEST(RateLimiter, LetsOneASecondOutAndCountsTheRest) {
  RateLimiter limiter;
  EXPECT_EQ(limiter.Admit("a", 5'000), 0u);
  EXPECT_EQ(limiter.Admit("a", 5'000), std::nullopt);
  EXPECT_EQ(limiter.Admit("a", 5'999), std::nullopt);
  EXPECT_EQ(limiter.Admit("a", 6'000), 2u);
  EXPECT_EQ(limiter.Admit("a", 8'000), 0u);
}

TEST(RateLimiter, TreatsKindsApart) {
  RateLimiter limiter;
  EXPECT_EQ(limiter.Admit("a", 1), 0u);
  EXPECT_EQ(limiter.Admit("b", 1), 0u);
  EXPECT_EQ(limiter.Admit("a", 2), std::nullopt);
}

TEST(RateLimiter, GoesOnWhenTheClockJumpsBack) {
  RateLimiter limiter;
  EXPECT_EQ(limiter.Admit("a", 1'000'000), 0u);
  EXPECT_EQ(limiter.Admit("a", 10), 0u);
  EXPECT_EQ(limiter.Admit("a", 11), std::nullopt);
}

TEST(RateLimiter, BoundsAStormOfManyKinds) {
  RateLimiter limiter;
  uint64_t lines = 0;
  constexpr uint64_t kMinuteMs = 60'000;
  for (uint64_t now_ms = 1; now_ms <= kMinuteMs; now_ms += 20) {
    for (int kind = 0; kind < 200; ++kind) {
      lines += limiter.Admit("kind" + std::to_string(kind), now_ms) ? 1 : 0;
    }
  }
  EXPECT_LE(lines, RateLimiter::kBurstMax + kMinuteMs / RateLimiter::kIntervalMs);
  EXPECT_GE(lines, kMinuteMs / RateLimiter::kIntervalMs);
  // What was held back meanwhile is told with the next line of its kind.
  EXPECT_GT(limiter.Admit("kind199", 10 * kMinuteMs).value_or(0), 100u);
}

TEST(RateLimiter, SharesTheLastPlaceAmongTooManyKinds) {
  RateLimiter limiter;
  uint64_t now_ms = 0;
  for (size_t i = 0; i < RateLimiter::kKindsMax; ++i) {
    now_ms += RateLimiter::kIntervalMs;
    EXPECT_EQ(limiter.Admit("kind" + std::to_string(i), now_ms), 0u);
  }
  EXPECT_EQ(limiter.Admit("one too many", now_ms), std::nullopt);
}

}  // namespace
}  // namespace mooncake::obs

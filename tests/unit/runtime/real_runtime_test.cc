#include "runtime/real_runtime.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace mooncake::runtime {
namespace {

constexpr uint64_t kForever = UINT64_MAX;
constexpr uint64_t kLongMs = 60'000;  // Only reached when something is broken.

TEST(RealRuntime, ClocksAgreeAndDoNotGoBack) {
  RealRuntime runtime;
  const uint64_t ms = runtime.NowMs();
  const uint64_t ns = runtime.NowNs();
  EXPECT_GE(ns / 1'000'000, ms);
  EXPECT_LT(ns / 1'000'000, ms + kLongMs);
  EXPECT_GE(runtime.NowNs(), ns);
  EXPECT_GT(runtime.WallMs(), 1'600'000'000'000u);
}

TEST(RealRuntime, RandomNumbersDifferBetweenThreads) {
  RealRuntime runtime;
  std::vector<uint64_t> drawn(4);
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (uint64_t& number : drawn) {
      threads.push_back(runtime.Spawn("draw", [&] { number = runtime.Random(); }));
    }
  }
  drawn.push_back(runtime.Random());
  drawn.push_back(runtime.Random());
  EXPECT_EQ(std::set<uint64_t>(drawn.begin(), drawn.end()).size(), drawn.size());
}

TEST(RealRuntime, AForkedChildDrawsOtherNumbers) {
  RealRuntime runtime;
  runtime.Random();
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    const uint64_t number = runtime.Random();
    _exit(write(ends[1], &number, sizeof(number)) == sizeof(number) ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  uint64_t number = 0;
  EXPECT_EQ(read(ends[0], &number, sizeof(number)), ssize_t{sizeof(number)});
  EXPECT_NE(number, runtime.Random());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(RealRuntime, ThreadsCarryTheirNames) {
  RealRuntime runtime;
  std::string name(16, '\0');
  auto thread = runtime.Spawn("a-rather-long-thread-name",
                              [&] { pthread_getname_np(pthread_self(), name.data(), 16); });
  thread->Join();
  thread->Join();
  EXPECT_STREQ(name.c_str(), "a-rather-long-t");
}

TEST(RealRuntime, AsksTheInterruptCheck) {
  RealRuntime runtime;
  EXPECT_FALSE(runtime.Interrupted());
  bool answer = true;
  runtime.SetInterruptCheck([&] { return answer; });
  EXPECT_TRUE(runtime.Interrupted());
  answer = false;
  EXPECT_FALSE(runtime.Interrupted());
  runtime.SetInterruptCheck({});
  EXPECT_FALSE(runtime.Interrupted());
}

TEST(RealEvent, WakesEveryWaiterEvenIfClearedAtOnce) {
  RealRuntime runtime;
  auto event = runtime.NewEvent();
  std::atomic<int> woken{0};
  std::vector<std::unique_ptr<Thread>> threads;
  for (int i = 0; i < 4; ++i) {
    threads.push_back(runtime.Spawn("waiter", [&, i] {
      if (event->WaitUntil(i % 2 == 0 ? kForever : runtime.NowMs() + kLongMs)) ++woken;
    }));
  }
  // Set again and again: a thread may come to wait after any one of them.
  while (woken < 4) {
    event->Set();
    event->Clear();
    runtime.Yield();
  }
  threads.clear();
  EXPECT_EQ(woken, 4);
}

TEST(RealEvent, StaysSetUntilCleared) {
  RealRuntime runtime;
  auto event = runtime.NewEvent();
  EXPECT_FALSE(event->WaitUntil(0));
  EXPECT_FALSE(event->WaitUntil(runtime.NowMs() + 1));
  event->Set();
  EXPECT_TRUE(event->WaitUntil(0));
  EXPECT_TRUE(event->WaitUntil(kForever));
  event->Clear();
  EXPECT_FALSE(event->WaitUntil(0));
}

TEST(RealEvent, MayBeDestroyedByItsWaiter) {
  RealRuntime runtime;
  for (int i = 0; i < 200; ++i) {
    auto event = runtime.NewEvent();
    auto setter = runtime.Spawn("setter", [raw = event.get()] { raw->Set(); });
    EXPECT_TRUE(event->WaitUntil(kForever));
    event.reset();
  }
}

}  // namespace
}  // namespace mooncake::runtime

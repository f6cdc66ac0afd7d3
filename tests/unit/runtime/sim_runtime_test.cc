#include "runtime/sim_runtime.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace mooncake::runtime {
namespace {

constexpr uint64_t kForever = UINT64_MAX;

// Some threads that append their names at random times; what they wrote.
std::string RunRace(uint64_t seed, uint64_t* trace_hash) {
  std::string order;
  SimRuntime runtime(seed);
  runtime.Run([&] {
    std::vector<std::unique_ptr<Thread>> threads;
    for (char name : {'a', 'b', 'c', 'd'}) {
      threads.push_back(runtime.Spawn(std::string(1, name), [&, name] {
        for (int i = 0; i < 20; ++i) {
          order += name;
          runtime.SleepMs(runtime.Random() % 3);
        }
      }));
    }
  });
  *trace_hash = runtime.TraceHash();
  return order;
}

TEST(SimRuntime, SameSeedGivesTheSameRun) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    uint64_t hash_1 = 0;
    uint64_t hash_2 = 0;
    EXPECT_EQ(RunRace(seed, &hash_1), RunRace(seed, &hash_2));
    EXPECT_EQ(hash_1, hash_2);
  }
}

TEST(SimRuntime, OtherSeedsGiveOtherRuns) {
  uint64_t hash_1 = 0;
  uint64_t hash_2 = 0;
  EXPECT_NE(RunRace(1, &hash_1), RunRace(2, &hash_2));
  EXPECT_NE(hash_1, hash_2);
}

TEST(SimRuntime, SleepMovesTheVirtualClockExactly) {
  SimRuntime runtime(1);
  const uint64_t start_ms = runtime.NowMs();
  const uint64_t start_wall_ms = runtime.WallMs();
  runtime.Run([&] {
    auto other = runtime.Spawn("other", [&] {
      runtime.SleepMs(86'400'000);
      EXPECT_EQ(runtime.NowMs(), start_ms + 86'400'000);
    });
    runtime.SleepMs(250);
    EXPECT_EQ(runtime.NowMs(), start_ms + 250);
    EXPECT_EQ(runtime.NowNs(), (start_ms + 250) * 1'000'000);
    EXPECT_EQ(runtime.WallMs(), start_wall_ms + 250);
  });
  EXPECT_EQ(runtime.NowMs(), start_ms + 86'400'000);
}

TEST(SimRuntime, RunsOneThreadAtATimeBetweenSwitchPoints) {
  SimRuntime runtime(3);
  int inside = 0;  // Not atomic on purpose.
  runtime.Run([&] {
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 8; ++i) {
      threads.push_back(runtime.Spawn("t", [&] {
        for (int n = 0; n < 100; ++n) {
          EXPECT_EQ(++inside, 1);
          EXPECT_EQ(--inside, 0);
          runtime.Yield();
        }
      }));
    }
  });
}

TEST(SimRuntime, YieldLetsOthersRunAndTimePass) {
  SimRuntime runtime(1);
  runtime.Run([&] {
    bool done = false;
    auto other = runtime.Spawn("other", [&] {
      runtime.SleepMs(5);
      done = true;
    });
    while (!done) runtime.Yield();
  });
}

TEST(SimRuntime, LeavesThreadsStandingBetweenRuns) {
  SimRuntime runtime(1);
  std::unique_ptr<Event> stop;
  std::unique_ptr<Thread> server;
  int beats = 0;
  runtime.Run([&] {
    stop = runtime.NewEvent();
    server = runtime.Spawn("server", [&] {
      while (!stop->WaitUntil(runtime.NowMs() + 10)) ++beats;
    });
    runtime.SleepMs(105);
  });
  EXPECT_EQ(beats, 10);
  runtime.Run([&] {
    stop->Set();
    server->Join();
  });
  EXPECT_EQ(beats, 10);
  server.reset();  // Has ended, so it may go outside of a run.
}

TEST(SimRuntime, RandomDoesNotDependOnTheSchedule) {
  SimRuntime plain(7);
  SimRuntime busy(7);
  busy.Run([&] {
    auto other = busy.Spawn("other", [&] { busy.Yield(); });
    busy.Yield();
  });
  EXPECT_EQ(plain.Random(), busy.Random());
  EXPECT_NE(plain.Random(), SimRuntime(8).Random());
}

TEST(SimThread, JoinWaitsForTheEndAndIsIdempotent) {
  SimRuntime runtime(5);
  runtime.Run([&] {
    bool ended = false;
    auto thread = runtime.Spawn("t", [&] {
      runtime.SleepMs(100);
      ended = true;
    });
    EXPECT_FALSE(ended);
    thread->Join();
    EXPECT_TRUE(ended);
    thread->Join();
  });
}

TEST(SimThread, NestsAndJoinsByDestruction) {
  SimRuntime runtime(5);
  int ended = 0;
  runtime.Run([&] {
    auto outer = runtime.Spawn("outer", [&] {
      auto inner = runtime.Spawn("inner", [&] {
        runtime.SleepMs(10);
        ++ended;
      });
      inner.reset();
      EXPECT_EQ(ended, 1);
      ++ended;
    });
  });
  EXPECT_EQ(ended, 2);
}

TEST(SimEvent, WakesEveryWaiterEvenIfClearedAtOnce) {
  SimRuntime runtime(2);
  runtime.Run([&] {
    auto event = runtime.NewEvent();
    int woken = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 3; ++i) {
      threads.push_back(runtime.Spawn("w", [&] { woken += event->WaitUntil(kForever) ? 1 : 0; }));
    }
    runtime.SleepMs(1);
    event->Set();
    event->Clear();
    threads.clear();
    EXPECT_EQ(woken, 3);
    EXPECT_FALSE(event->WaitUntil(runtime.NowMs()));
  });
}

TEST(SimEvent, TimesOutAtTheDeadline) {
  SimRuntime runtime(2);
  runtime.Run([&] {
    auto event = runtime.NewEvent();
    const uint64_t start_ms = runtime.NowMs();
    EXPECT_FALSE(event->WaitUntil(start_ms + 40));
    EXPECT_EQ(runtime.NowMs(), start_ms + 40);
    EXPECT_FALSE(event->WaitUntil(start_ms));
    event->Set();  // Whoever timed out is no longer waiting.
    EXPECT_TRUE(event->WaitUntil(0));
    EXPECT_EQ(runtime.NowMs(), start_ms + 40);
  });
}

TEST(SimEvent, SetEndsATimedWaitEarlyAndItsTimerToo) {
  SimRuntime runtime(2);
  runtime.Run([&] {
    auto event = runtime.NewEvent();
    const uint64_t start_ms = runtime.NowMs();
    auto setter = runtime.Spawn("setter", [&] {
      runtime.SleepMs(10);
      event->Set();
    });
    EXPECT_TRUE(event->WaitUntil(start_ms + 1'000));
    EXPECT_EQ(runtime.NowMs(), start_ms + 10);
    runtime.SleepMs(2'000);
    EXPECT_EQ(runtime.NowMs(), start_ms + 2'010);
  });
}

TEST(SimRuntimeDeathTest, ADeadlockNamesTheSeedAndTheThreads) {
  EXPECT_DEATH(
      {
        SimRuntime runtime(4711);
        runtime.Run([&] {
          auto event = runtime.NewEvent();
          auto thread = runtime.Spawn("forgotten", [&] { event->WaitUntil(kForever); });
          thread->Join();
        });
      },
      "seed 4711.*deadlock(.|\n)*main: joins a thread(.|\n)*forgotten: waits for an event");
}

TEST(SimRuntimeDeathTest, ALoopAroundATimerHitsTheLimit) {
  EXPECT_DEATH(
      {
        SimRuntime runtime(1, 10'000);
        runtime.Run([&] {
          while (true) runtime.SleepMs(1'000);
        });
      },
      "past its limit");
}

TEST(SimRuntimeDeathTest, ALockHeldAtASwitchPointIsABug) {
  EXPECT_DEATH(
      {
        SimRuntime runtime(1);
        base::Mutex mu;
        runtime.Run([&] {
          base::MutexLock lock(mu);
          runtime.SleepMs(1);
        });
      },
      "HeldLocks");
}

TEST(SimRuntimeDeathTest, AStrangerMayNotSwitch) {
  EXPECT_DEATH(SimRuntime(1).SleepMs(1), "outside the simulation");
}

}  // namespace
}  // namespace mooncake::runtime

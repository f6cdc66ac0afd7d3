// SimRuntime: a seeded scheduler and a virtual clock, so that a whole cluster runs in one process
// and the same seed gives the same run.
//
//   SimRuntime runtime(seed);
//   runtime.Run([&] {
//     auto thread = runtime.Spawn("worker", [&] { runtime.SleepMs(10'000); });
//     thread->Join();  // Returns at once in real time.
//   });
//
// Each sim thread is a real thread, but exactly one of them runs at a time. The switch points
// are SleepMs, Event::WaitUntil, Yield, Thread::Join and the end of a thread: there the seed
// picks the next runnable thread, and when there is none the clock jumps to the earliest
// wake-up. No lock may be held at a switch point. Time stands still between switch points; a
// Yield takes a microsecond, so that a loop around one sees time pass.
//
// All of its threads are kept on one processor, where handing over costs a quarter of what it
// costs across two; as only one runs at a time, nothing is lost.
//
// Thread-safety: only sim threads may call it, and outside of Run the thread that calls Run.
// That one may do all but switch: sleep, wait, yield, or join a thread that has not ended.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/runtime.h"
#include "runtime/xoshiro.h"

namespace mooncake::runtime {

class SimThread;
class SimEvent;

class SimRuntime final : public Runtime {
 public:
  // A simulation that goes beyond `virtual_ms_max` hangs in a loop around a timer: it stops
  // the process, as a deadlock does, with the seed and what each thread is doing.
  explicit SimRuntime(uint64_t seed, uint64_t virtual_ms_max = 7 * 24 * 3'600'000ULL);
  // REQUIRES: every thread has ended.
  ~SimRuntime() override;
  SimRuntime(const SimRuntime&) = delete;
  SimRuntime& operator=(const SimRuntime&) = delete;

  // Runs `main` on the calling thread, as a sim thread, until it returns. Threads that it has
  // left behind stand still until the next Run.
  void Run(const std::function<void()>& main);

  // A hash over every scheduling decision so far.
  uint64_t TraceHash() const { return trace_hash_; }
  uint64_t SwitchCount() const { return switch_count_; }
  uint64_t seed() const { return seed_; }

  uint64_t NowMs() override;
  uint64_t NowNs() override;
  uint64_t WallMs() override;
  void SleepMs(uint64_t ms) override;
  void Yield() override;
  // A stream of its own: drawing from it does not disturb the schedule, nor the reverse.
  uint64_t Random() override;
  std::unique_ptr<Event> NewEvent() override;
  // The thread becomes runnable; the caller goes on until its next switch point.
  std::unique_ptr<Thread> Spawn(std::string name, std::function<void()> body) override;

 private:
  friend class SimEvent;
  friend class SimThreadHandle;

  // The calling sim thread; stops the process when it is none of this simulation.
  SimThread& Current() const;
  std::shared_ptr<SimThread> AddThread(std::string name);
  void MakeRunnable(SimThread& thread);
  // Puts the running thread to sleep until it is made runnable, or until `wake_ns`.
  void Block(SimThread& thread, const char* activity, uint64_t wake_ns);
  // Gives the baton to the next thread, and waits to get it back.
  void Switch(SimThread& current);
  SimThread& PickNext();
  void WakeTimedOut();
  void Finish(SimThread& thread);
  void Join(SimThread& thread);
  [[noreturn]] void Fail(const char* reason) const;

  const uint64_t seed_;
  const uint64_t now_ns_max_;
  const int processor_;
  Xoshiro schedule_random_;
  Xoshiro random_;

  // Only the thread with the baton touches what follows, which is why there is no lock.
  uint64_t now_ns_;
  uint64_t next_id_ = 0;
  uint64_t trace_hash_ = 0;
  uint64_t switch_count_ = 0;
  std::map<uint64_t, std::shared_ptr<SimThread>> threads_;  // Not ended; by id.
  std::vector<SimThread*> runnable_;
  std::set<std::pair<uint64_t, uint64_t>> timers_;  // (wake-up in ns, id).
};

}  // namespace mooncake::runtime

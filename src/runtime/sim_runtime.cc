#include "runtime/sim_runtime.h"

#include <pthread.h>
#include <sched.h>

#include <cstdio>

#include "base/check.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "runtime/sim_thread.h"

namespace mooncake::runtime {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;
constexpr uint64_t kYieldNs = 1'000;
// Not zero, which code may take for "never".
constexpr uint64_t kStartNs = 1'000 * kNsPerMs;
constexpr uint64_t kWallOffsetMs = 1'700'000'000'000;
constexpr uint64_t kRandomStream = 0x72616e646f6d;  // Sets the two streams of a seed apart.

struct CurrentThread {
  const SimRuntime* runtime = nullptr;
  SimThread* thread = nullptr;
};
thread_local CurrentThread current_thread;

// Keeps the calling thread on one processor. Failing only costs speed.
class ProcessorPin {
 public:
  explicit ProcessorPin(int processor) {
    CPU_ZERO(&before_);
    if (processor < 0 || processor >= CPU_SETSIZE) return;
    if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    pinned_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~ProcessorPin() {
    if (pinned_) sched_setaffinity(0, sizeof(before_), &before_);
  }
  ProcessorPin(const ProcessorPin&) = delete;
  ProcessorPin& operator=(const ProcessorPin&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

}  // namespace

SimRuntime::SimRuntime(uint64_t seed, uint64_t virtual_ms_max)
    : seed_(seed),
      now_ns_max_(kStartNs + virtual_ms_max * kNsPerMs),
      processor_(sched_getcpu()),
      schedule_random_(seed),
      random_(base::Mix64(seed ^ kRandomStream)),
      now_ns_(kStartNs) {}

SimRuntime::~SimRuntime() {
  if (!threads_.empty()) Fail("the simulation ends with threads that have not ended");
}

void SimRuntime::Run(const std::function<void()>& main) {
  MC_CHECK(current_thread.thread == nullptr);  // No simulation within a simulation.
  const ProcessorPin pin(processor_);
  const std::shared_ptr<SimThread> thread = AddThread("main");
  current_thread = {this, thread.get()};
  main();
  current_thread = {};
  Finish(*thread);
}

uint64_t SimRuntime::NowMs() { return now_ns_ / kNsPerMs; }
uint64_t SimRuntime::NowNs() { return now_ns_; }
uint64_t SimRuntime::WallMs() { return kWallOffsetMs + NowMs(); }
uint64_t SimRuntime::Random() { return random_.Next(); }

void SimRuntime::SleepMs(uint64_t ms) {
  const uint64_t left_ms = (kNever - now_ns_) / kNsPerMs;
  Block(Current(), "sleeps", ms > left_ms ? kNever : now_ns_ + ms * kNsPerMs);
}

void SimRuntime::Yield() {
  SimThread& current = Current();
  now_ns_ += kYieldNs;
  MakeRunnable(current);
  Switch(current);
}

std::unique_ptr<Event> SimRuntime::NewEvent() { return std::make_unique<SimEvent>(*this); }

std::unique_ptr<Thread> SimRuntime::Spawn(std::string name, std::function<void()> body) {
  std::shared_ptr<SimThread> thread = AddThread(std::move(name));
  thread->os_thread = std::thread([this, thread, body = std::move(body)]() mutable {
    pthread_setname_np(pthread_self(), thread->name.substr(0, 15).c_str());
    const ProcessorPin pin(processor_);
    current_thread = {this, thread.get()};
    thread->baton.Take();
    body();
    body = nullptr;  // What it holds is destroyed within the simulation, too.
    MC_CHECK(base::HeldLocks() == 0);
    Finish(*thread);
    // The next one is picked last: this thread no longer has the baton after that, and may not
    // touch the simulation.
    PickNext().baton.Give();
  });
  MakeRunnable(*thread);
  return std::make_unique<SimThreadHandle>(*this, std::move(thread));
}

SimThread& SimRuntime::Current() const {
  if (current_thread.runtime != this) Fail("a switch point was reached outside the simulation");
  return *current_thread.thread;
}

std::shared_ptr<SimThread> SimRuntime::AddThread(std::string name) {
  const uint64_t id = next_id_++;
  auto thread = std::make_shared<SimThread>(id, std::move(name));
  threads_.emplace(id, thread);
  return thread;
}

void SimRuntime::MakeRunnable(SimThread& thread) {
  if (thread.wake_ns != kNever) timers_.erase({thread.wake_ns, thread.id});
  thread.wake_ns = kNever;
  thread.activity = "runnable";
  runnable_.push_back(&thread);
}

void SimRuntime::Block(SimThread& thread, const char* activity, uint64_t wake_ns) {
  thread.activity = activity;
  thread.wake_ns = wake_ns;
  if (wake_ns != kNever) timers_.emplace(wake_ns, thread.id);
  Switch(thread);
}

void SimRuntime::Switch(SimThread& current) {
  MC_CHECK(base::HeldLocks() == 0);
  SimThread& next = PickNext();
  if (&next == &current) return;
  next.baton.Give();
  current.baton.Take();
}

SimThread& SimRuntime::PickNext() {
  WakeTimedOut();
  if (runnable_.empty()) {
    if (timers_.empty()) Fail("deadlock: no thread can run and none waits for a time");
    now_ns_ = timers_.begin()->first;
    WakeTimedOut();
  }
  if (now_ns_ > now_ns_max_) Fail("the simulation ran past its limit of virtual time");
  const size_t choice = schedule_random_.Next() % runnable_.size();
  SimThread* next = runnable_[choice];
  runnable_[choice] = runnable_.back();
  runnable_.pop_back();
  next->activity = "runs";
  ++switch_count_;
  trace_hash_ = base::Mix64(trace_hash_ + base::Mix64(next->id + 1) + now_ns_);
  return *next;
}

void SimRuntime::WakeTimedOut() {
  while (!timers_.empty() && timers_.begin()->first <= now_ns_) {
    SimThread& thread = *threads_.at(timers_.begin()->second);
    if (thread.waits_on != nullptr) thread.waits_on->RemoveWaiter(thread);
    thread.waits_on = nullptr;
    MakeRunnable(thread);
  }
}

void SimRuntime::Finish(SimThread& thread) {
  thread.ended = true;
  for (SimThread* joiner : thread.joiners) MakeRunnable(*joiner);
  thread.joiners.clear();
  threads_.erase(thread.id);
}

void SimRuntime::Join(SimThread& thread) {
  SimThread& current = Current();
  thread.joiners.push_back(&current);
  Block(current, "joins a thread", kNever);
}

void SimRuntime::Fail(const char* reason) const {
  std::fprintf(stderr, "simulation with seed %llu, at %llu ms: %s\n",
               static_cast<unsigned long long>(seed_),
               static_cast<unsigned long long>(now_ns_ / kNsPerMs), reason);
  for (const auto& [id, thread] : threads_) {
    std::fprintf(stderr, "  thread %llu %s: %s", static_cast<unsigned long long>(id),
                 thread->name.c_str(), thread->activity);
    if (thread->wake_ns != kNever) {
      std::fprintf(stderr, ", until %llu ms",
                   static_cast<unsigned long long>(thread->wake_ns / kNsPerMs));
    }
    std::fputc('\n', stderr);
  }
  base::CheckFailed(reason, __FILE__, __LINE__);
}

}  // namespace mooncake::runtime

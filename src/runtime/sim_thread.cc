#include "runtime/sim_thread.h"

#include <algorithm>

#include "base/check.h"

namespace mooncake::runtime {
namespace {

constexpr uint64_t kNsPerMs = 1'000'000;

}  // namespace

SimEvent::~SimEvent() { MC_CHECK(waiters_.empty()); }

void SimEvent::Set() {
  set_ = true;
  std::vector<SimThread*> waiters;
  waiters.swap(waiters_);
  for (SimThread* thread : waiters) {
    thread->waits_on = nullptr;
    thread->woken_by_event = true;
    runtime_.MakeRunnable(*thread);
  }
}

bool SimEvent::WaitUntil(uint64_t deadline_ms) {
  SimThread& current = runtime_.Current();
  // A switch point even when there is nothing to wait for: more orders get tried.
  if (set_) {
    runtime_.Yield();
    return true;
  }
  const uint64_t deadline_ns = deadline_ms > kNever / kNsPerMs ? kNever : deadline_ms * kNsPerMs;
  current.woken_by_event = false;
  current.waits_on = this;
  waiters_.push_back(&current);
  runtime_.Block(current, "waits for an event", deadline_ns);
  return current.woken_by_event || set_;
}

void SimEvent::RemoveWaiter(SimThread& thread) { std::erase(waiters_, &thread); }

void SimThreadHandle::Join() {
  if (!thread_->ended) runtime_.Join(*thread_);
  // It has nothing left to do but to return.
  if (thread_->os_thread.joinable()) thread_->os_thread.join();
}

}  // namespace mooncake::runtime

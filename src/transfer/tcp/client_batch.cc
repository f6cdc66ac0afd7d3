// Runs calls to their ends: one with blocking system calls, several with poll.
#include <poll.h>

#include <algorithm>
#include <vector>

#include "transfer/tcp/client_call.h"

namespace mooncake::transfer {
namespace {

using Wait = ClientCall::Wait;
using Progress = ClientCall::Progress;

// Calls of one batch in progress at the same time; bounds its descriptors.
constexpr size_t kWindow = 1024;
// Steps of one call before the others get a look: 2 MiB with the usual chunks.
constexpr int kStepsMax = 8;

short PollEvents(Wait wait) { return wait == Wait::kWrite ? POLLOUT : POLLIN; }

// Says when it is time to ask the runtime for interrupts: once a slice.
class InterruptTimer {
 public:
  InterruptTimer(const ClientContext& context, uint64_t now_ms)
      : slice_ms_(context.options.slice_ms), next_ms_(now_ms + slice_ms_) {}
  bool Due(uint64_t now_ms) {
    if (now_ms < next_ms_) return false;
    next_ms_ = now_ms + slice_ms_;
    return true;
  }

 private:
  const uint64_t slice_ms_;
  uint64_t next_ms_;
};

void RunOne(ClientContext& context, Call& call) {
  ClientCall state(context, call);
  uint64_t now_ms = context.runtime.NowMs();
  InterruptTimer interrupts(context, now_ms);
  Progress progress = state.Start(now_ms);
  while (progress.wait != Wait::kDone) {
    const uint64_t limit_ms = std::max(state.LimitMs(), now_ms);
    if (limit_ms - now_ms >= context.options.slice_ms) {
      progress = state.Advance(0);
    } else {
      // The socket's own time limit is a whole slice, too late for what is left.
      pollfd entry = {state.fd(), PollEvents(progress.wait), 0};
      (void)poll(&entry, 1, static_cast<int>(limit_ms - now_ms));
      progress = state.Advance(MSG_DONTWAIT);
    }
    if (progress.wait == Wait::kDone) return;
    now_ms = context.runtime.NowMs();
    progress = state.CheckLimits(now_ms, interrupts.Due(now_ms));
  }
}

class Batch {
 public:
  Batch(ClientContext& context, std::span<Call> calls)
      : context_(context),
        calls_(calls),
        now_ms_(context.runtime.NowMs()),
        interrupts_(context, now_ms_) {
    states_.reserve(calls.size());
  }

  void Run() {
    while (StartMore()) {
      WaitForAny();
      now_ms_ = context_.runtime.NowMs();
      const bool poll_interrupt = interrupts_.Due(now_ms_);
      for (size_t i = 0; i < active_.size(); ++i) {
        Active& active = active_[i];
        if (entries_[i].revents != 0) Drive(active, false);
        if (active.wait != Wait::kDone) {
          active.wait = states_[active.index].CheckLimits(now_ms_, poll_interrupt).wait;
        }
      }
      std::erase_if(active_, [](const Active& active) { return active.wait == Wait::kDone; });
    }
  }

 private:
  struct Active {
    size_t index;
    Wait wait;
  };

  // Sends what the window allows. False: all calls have ended.
  bool StartMore() {
    while (states_.size() < calls_.size() && active_.size() < kWindow) {
      states_.emplace_back(context_, calls_[states_.size()]);
      Active active = {states_.size() - 1, Wait::kDone};
      const Progress progress = states_.back().Start(now_ms_);
      active.wait = progress.wait;
      if (progress.moved) Drive(active, true);
      if (active.wait != Wait::kDone) active_.push_back(active);
    }
    return !active_.empty();
  }

  void Drive(Active& active, bool only_send) {
    for (int step = 0; step < kStepsMax; ++step) {
      const Progress progress = states_[active.index].Advance(MSG_DONTWAIT);
      active.wait = progress.wait;
      if (!progress.moved || (only_send && progress.wait != Wait::kWrite)) return;
    }
  }

  void WaitForAny() {
    uint64_t limit_ms = now_ms_ + context_.options.slice_ms;
    entries_.clear();
    for (const Active& active : active_) {
      const ClientCall& state = states_[active.index];
      entries_.push_back({state.fd(), PollEvents(active.wait), 0});
      limit_ms = std::min(limit_ms, std::max(state.LimitMs(), now_ms_));
    }
    (void)poll(entries_.data(), entries_.size(), static_cast<int>(limit_ms - now_ms_));
  }

  ClientContext& context_;
  const std::span<Call> calls_;
  uint64_t now_ms_;
  InterruptTimer interrupts_;
  std::vector<ClientCall> states_;
  std::vector<Active> active_;
  std::vector<pollfd> entries_;
};

}  // namespace

void RunCalls(ClientContext& context, std::span<Call> calls) {
  if (calls.size() == 1) {
    RunOne(context, calls[0]);
  } else if (!calls.empty()) {
    Batch(context, calls).Run();
  }
}

}  // namespace mooncake::transfer

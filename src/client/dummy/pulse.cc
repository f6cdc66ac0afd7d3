#include "client/dummy/pulse.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "client/dummy/messages.h"

namespace mooncake::client {

namespace {
constexpr uint64_t kAfterMs = 500;  // A call waits that long before it asks, and asks again.
}  // namespace

bool Pulse::Gone(uint64_t waiting_since_ms) {
  const uint64_t now_ms = runtime_.NowMs();
  bool mine = false;
  if (now_ms >= waiting_since_ms + kAfterMs) {
    base::MutexLock lock(mu_);
    mine = !std::exchange(taken_, true);
  }
  bool heard = false;
  if (mine) {
    heard = question_ && Answered();
    if (!question_ && now_ms >= next_ms_) {
      next_ms_ = now_ms + kAfterMs;
      if (!Ask()) question_.reset();
    }
  }
  base::MutexLock lock(mu_);
  if (mine) taken_ = false;
  if (heard) heard_ms_ = now_ms;
  return now_ms >= std::max(heard_ms_, waiting_since_ms) + kSilentMs;
}

bool Pulse::Ask() {
  question_ = pool_.Take(CallPool::Caller::kWaits, 2 * kAfterMs);
  if (!question_ ||
      !question_->frame.Pack(CallType::kHealth, kAnyProcessor, daemon_v1::HealthRequest())) {
    return false;
  }
  return question_->frame.Send(question_->socket.get(), [](bool) { return true; }).ok();
}

// A connection that has ended is no answer; the next question is asked on another one.
bool Pulse::Answered() {
  pollfd look = {question_->socket.get(), POLLIN, 0};
  if (poll(&look, 1, 0) <= 0) return false;
  const auto at_once = [](bool) { return true; };
  const bool good = question_->frame.Receive(question_->socket.get(), at_once).ok();
  if (good) pool_.GiveBack(std::move(question_));
  question_.reset();
  return good;
}

}  // namespace mooncake::client

#include "transfer/memory/memory_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace mooncake::transfer {
namespace {

constexpr uint64_t kChunk = 256u << 10;  // Of OnSend.
constexpr std::byte kWrongBits{0x10};

}  // namespace

MemoryCall::MemoryCall(NetworkState& network, const std::string& self,
                       const std::atomic<bool>& closed, std::shared_ptr<Event> event, Call& call)
    : network_(network), self_(self), closed_(closed), event_(std::move(event)), call_(call) {}

MemoryCall::~MemoryCall() {
  if (delivery_) network_.Leave(delivery_);
}

void MemoryCall::Finish(Status status, CallFailure failure) {
  call_.status = std::move(status);
  call_.failure = failure;
  phase_ = Phase::kDone;
  if (delivery_) network_.Leave(std::exchange(delivery_, nullptr));
}

void MemoryCall::Broken() {
  Finish(TransportError(fmt::format("peer `{}` closed the connection", call_.endpoint)),
         CallFailure::kBroken);
}

void MemoryCall::Move(Phase phase, uint64_t now_ms) {
  phase_ = phase;
  if (phase == Phase::kLost) return;
  moved_ms_ = now_ms;
  due_ms_ = now_ms + network_.Between(faults_.latency_ms_min, faults_.latency_ms_max);
}

void MemoryCall::Start(uint64_t now_ms) {
  call_.status = Ok();
  call_.failure = CallFailure::kNone;
  faults_ = network_.faults();
  moved_ms_ = due_ms_ = now_ms;
  phase_ = Phase::kRequest;
  Advance(now_ms);  // Closed already, or too late: nothing is sent.
  if (done()) return;
  if (call_.message.size() > kMessageSizeMax) return Broken();  // As a server would do.
  Send();
  if (Status end = call_.observer->OnEnd(); !end) {
    return Finish(std::move(end), CallFailure::kLocal);
  }
  Move(Phase::kRequest, now_ms);
}

// What is under way is a copy: the caller's memory is free when the call ends.
void MemoryCall::Send() {
  delivery_ = std::make_shared<Delivery>();
  delivery_->from = self_;
  delivery_->to = call_.endpoint;
  delivery_->type = call_.type;
  delivery_->message = call_.message;
  delivery_->parties = 1;
  delivery_->deadline_ms =
      call_.deadline_ms != 0 ? call_.deadline_ms : std::numeric_limits<uint64_t>::max();
  delivery_->payload.reserve(TotalSize(call_.payload));
  for (size_t piece = 0; piece < call_.payload.size(); ++piece) {
    const ConstBytes bytes = call_.payload[piece];
    for (uint64_t offset = 0; offset < bytes.size(); offset += kChunk) {
      const ConstBytes chunk = bytes.subspan(offset, std::min(kChunk, bytes.size() - offset));
      call_.observer->OnSend(piece, chunk);
      delivery_->payload.insert(delivery_->payload.end(), chunk.begin(), chunk.end());
    }
  }
  const uint64_t wrong = DrawWrongByte(delivery_->payload.size());
  if (wrong < delivery_->payload.size()) delivery_->payload[wrong] ^= kWrongBits;
}

// Which byte of a payload changes on its way; `size`: none.
uint64_t MemoryCall::DrawWrongByte(uint64_t size) {
  if (size == 0 || !network_.Chance(faults_.corrupt)) return size;
  return network_.Between(0, size - 1);
}

uint64_t MemoryCall::DueMs() const {
  uint64_t due_ms = moved_ms_ + network_.stall_ms;
  if (call_.deadline_ms != 0) due_ms = std::min(due_ms, call_.deadline_ms);
  if (phase_ == Phase::kRequest || phase_ == Phase::kReply) due_ms = std::min(due_ms, due_ms_);
  return due_ms;
}

void MemoryCall::Interrupt() { Finish(TransportError("interrupted"), CallFailure::kLocal); }

void MemoryCall::Advance(uint64_t now_ms) {
  if (closed_.load(std::memory_order_relaxed)) {
    return Finish(InvalidState("the transport is closed"), CallFailure::kLocal);
  }
  if (call_.deadline_ms != 0 && now_ms >= call_.deadline_ms) {
    return Finish(
        TransportError(fmt::format("peer `{}` did not answer by the deadline", call_.endpoint)),
        CallFailure::kStalled);
  }
  if (now_ms >= moved_ms_ + network_.stall_ms) {
    return Finish(TransportError(fmt::format("peer `{}` moved no byte for {} ms", call_.endpoint,
                                             network_.stall_ms)),
                  CallFailure::kStalled);
  }
  if (!delivery_) return;  // Start looks at the limits only.
  if (phase_ == Phase::kRequest && now_ms >= due_ms_) return Arrive(now_ms);
  if (phase_ == Phase::kReply && now_ms >= due_ms_) return TakeReply();
  if (phase_ == Phase::kServing && delivery_->finished.load(std::memory_order_acquire)) {
    Served(now_ms);
  }
}

void MemoryCall::Arrive(uint64_t now_ms) {
  const Link link = network_.LinkBetween(self_, delivery_->to);
  if (link == Link::kRefused) {
    call_.nobody_listens = true;
    return Finish(TransportError(fmt::format("peer `{}` refused", call_.endpoint)),
                  CallFailure::kRefused);
  }
  if (link == Link::kLost || network_.Chance(faults_.drop_request)) {
    return Move(Phase::kLost, now_ms);
  }
  if (network_.Chance(faults_.reset_request)) return Broken();
  MaybeDuplicate();
  Move(Phase::kServing, now_ms);
  if (link == Link::kPaused) return network_.ServeLater(delivery_, 0, event_);
  if (!network_.Begin(delivery_)) return Broken();
  const bool served = network_.Serve(*delivery_, false);
  network_.End(delivery_);
  if (!served) return network_.ServeLater(delivery_, 0, event_);
  Served(network_.runtime.NowMs());
}

void MemoryCall::MaybeDuplicate() {
  if (!network_.Chance(faults_.duplicate)) return;
  auto copy = std::make_shared<Delivery>();
  copy->from = delivery_->from;
  copy->to = delivery_->to;
  copy->type = delivery_->type;
  copy->message = delivery_->message;
  copy->payload = delivery_->payload;
  copy->deadline_ms = delivery_->deadline_ms;
  network_.ServeLater(copy, network_.Between(0, faults_.duplicate_ms_max), nullptr);
}

void MemoryCall::Served(uint64_t now_ms) {
  if (delivery_->stage != Delivery::Stage::kServed) return Broken();
  if (network_.LinkBetween(delivery_->to, self_) == Link::kLost ||
      network_.Chance(faults_.drop_reply)) {
    return Move(Phase::kLost, now_ms);
  }
  if (network_.Chance(faults_.reset_reply)) return Broken();
  Move(Phase::kReply, now_ms);
}

void MemoryCall::TakeReply() {
  const Link link = network_.LinkBetween(self_, delivery_->to);
  if (link == Link::kRefused || !network_.Begin(delivery_)) return Broken();
  if (link != Link::kUp) {
    network_.End(delivery_);
    return Move(Phase::kLost, moved_ms_);
  }
  const Reply& reply = delivery_->reply;
  const uint64_t size = TotalSize(reply.payload);
  auto targets = call_.observer->OnReply(reply.message, size);
  bool whole = true;
  if (targets && TotalSize(*targets) == size) whole = CopyReply(*targets);
  network_.End(delivery_);
  if (!targets) return Finish(std::move(targets).error(), CallFailure::kLocal);
  if (TotalSize(*targets) != size) {
    return Finish(InvalidArgument(fmt::format("{} bytes of targets for a reply of {} bytes",
                                              TotalSize(*targets), size)),
                  CallFailure::kLocal);
  }
  if (!whole) return Broken();
  Finish(Ok(), CallFailure::kNone);
}

// From piece to piece, with a look at the peer after each step: it may end in the middle.
bool MemoryCall::CopyReply(std::span<const MutableBytes> targets) {
  size_t target = 0;
  uint64_t target_done = 0;
  uint64_t done = 0;
  const uint64_t wrong = DrawWrongByte(TotalSize(delivery_->reply.payload));
  for (const ConstBytes& source : delivery_->reply.payload) {
    const bool whole = network_.InSteps(source.size(), [&](uint64_t offset, uint64_t size) {
      if (network_.Revoked(*delivery_) ||
          network_.LinkBetween(self_, delivery_->to) == Link::kRefused) {
        return false;
      }
      while (size > 0) {
        const MutableBytes left = targets[target].subspan(target_done);
        const uint64_t part = std::min<uint64_t>(left.size(), size);
        if (part > 0 && targets[target].data() != nullptr) {
          std::memcpy(left.data(), source.data() + offset, part);
          if (wrong >= done && wrong < done + part) left[wrong - done] ^= kWrongBits;
          call_.observer->OnReceive(target, left.first(part));
        }
        done += part;
        target_done += part;
        offset += part;
        size -= part;
        if (target_done == targets[target].size()) ++target, target_done = 0;
      }
      return true;
    });
    if (!whole) return false;
  }
  return true;
}

}  // namespace mooncake::transfer

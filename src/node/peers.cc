#include "node/peers.h"

#include <fmt/format.h>

#include <algorithm>

namespace mooncake::node {

Result<std::span<const MutableBytes>> MessageReply::OnReply(std::string_view message,
                                                            uint64_t payload_size) {
  if (payload_size != 0) return TransportError("unexpected payload in a reply");
  text = std::string(message);
  return std::span<const MutableBytes>();
}

namespace {

// Adds `origin.addressee` to a serialised request. A field that occurs again is merged into what
// is there, and all requests have their origin at the same number.
void AddAddressee(uint32_t instance, std::string* message) {
  if (instance == 0) return;
  v1::PingRequest addressed;
  addressed.mutable_origin()->set_addressee(instance);
  addressed.AppendToString(message);
}

constexpr int kSequenceBits = 32;
constexpr uint64_t kNsPerMs = 1'000'000;

Error WithReason(Error error, CallFailure failure) {
  if (failure == CallFailure::kStalled) error.reason = ErrorReason::kTimeout;
  if (failure == CallFailure::kRefused || failure == CallFailure::kBroken ||
      failure == CallFailure::kStranger) {
    error.reason = ErrorReason::kOwnerDead;
  }
  return error;
}

}  // namespace

Peers::Peers(Runtime& runtime, Transport& transport, Membership& membership, Metrics& metrics,
             uint64_t stall_ms)
    : runtime_(runtime),
      transport_(transport),
      membership_(membership),
      counts_(metrics),
      stall_ms_(stall_ms),
      // A process that has got our name before must not have its replies taken for ours.
      next_sequence_((uint64_t{membership.instance()} << kSequenceBits) + 1) {}

void Peers::FillOrigin(bool changes_something, v1::Origin* origin) {
  origin->set_node(membership_.self_name());
  origin->set_revision(membership_.view()->revision());
  if (changes_something) {
    origin->set_sequence(next_sequence_.fetch_add(1, std::memory_order_relaxed));
  }
}

void Peers::CallMany(std::span<PeerCall> calls) {
  std::vector<Call> wire;
  std::vector<size_t> sent;  // Index in `calls` of each wire call.
  wire.reserve(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    PeerCall& call = calls[i];
    if (!call.even_if_suspected && membership_.Suspected(call.peer)) {
      call.status = WithReason(
          TransportError(fmt::format("node {} at {} is suspect and left alone for a while",
                                     call.peer.ToString(), call.endpoint)),
          CallFailure::kRefused);
      call.failure = CallFailure::kRefused;
      call.gone = membership_.KnownGone(call.peer);
      continue;
    }
    AddAddressee(call.instance, &call.message);
    Call& out = wire.emplace_back();
    out.endpoint = call.endpoint;
    out.type = static_cast<uint16_t>(call.type);
    out.message = call.message;
    out.payload = call.payload;
    out.deadline_ms = std::min(call.deadline_ms, last_deadline_ms_.load());
    out.observer = call.observer;
    sent.push_back(i);
  }
  if (wire.empty()) return;
  const uint64_t started_ms = runtime_.NowMs();
  const uint64_t started_ns = runtime_.NowNs();
  transport_.CallMany(wire);
  const uint64_t elapsed_ns = runtime_.NowNs() - started_ns;
  const uint64_t elapsed_ms = elapsed_ns / kNsPerMs;
  const bool stood_still = membership_.StoodStillSince(started_ms);
  bool all_answered = true;
  for (size_t i = 0; i < wire.size(); ++i) {
    PeerCall& call = calls[sent[i]];
    call.status = std::move(wire[i].status);
    call.failure = wire[i].failure;
    call.gone = wire[i].nobody_listens;
    all_answered = all_answered && call.status.ok();
    const uint64_t limit_ms = std::max(call.deadline_ms, started_ms) - started_ms;
    const bool early = std::min(elapsed_ms, limit_ms) < stall_ms_ * 9 / 10;
    const bool impatient = call.failure == CallFailure::kStalled && (early || stood_still);
    if (!call.status.ok()) call.status = WithReason(call.status.error(), call.failure);
    if (call.status.ok()) {
      membership_.Trust(call.peer);
    } else if (call.failure != CallFailure::kLocal && !impatient) {
      membership_.Suspect(call.peer, call.gone);
    }
  }
  counts_.Note(static_cast<MessageType>(wire[0].type), all_answered, elapsed_ns);
}

}  // namespace mooncake::node

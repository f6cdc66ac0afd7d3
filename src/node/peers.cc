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

Peers::Peers(Runtime& runtime, Transport& transport, Membership& membership, uint64_t stall_ms)
    : runtime_(runtime), transport_(transport), membership_(membership), stall_ms_(stall_ms) {}

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
      call.status =
          TransportError(fmt::format("node {} at {} is suspect and left alone for a while",
                                     call.peer.ToString(), call.endpoint));
      call.failure = CallFailure::kRefused;
      continue;
    }
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
  transport_.CallMany(wire);
  const uint64_t elapsed_ms = runtime_.NowMs() - started_ms;
  const bool stood_still = membership_.StoodStillSince(started_ms);
  for (size_t i = 0; i < wire.size(); ++i) {
    PeerCall& call = calls[sent[i]];
    call.status = std::move(wire[i].status);
    call.failure = wire[i].failure;
    const bool impatient =
        call.failure == CallFailure::kStalled && (elapsed_ms < stall_ms_ * 9 / 10 || stood_still);
    if (call.status.ok()) {
      membership_.Trust(call.peer);
    } else if (call.failure != CallFailure::kLocal && !impatient) {
      membership_.Suspect(call.peer);
    }
  }
}

}  // namespace mooncake::node

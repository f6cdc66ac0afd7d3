// Peers: calls to other nodes, with the evidence that they give about their health.
//
// A peer that refuses, stalls or breaks is suspected (Membership); calls to a suspected peer
// fail at once for the quarantine, so a dead peer costs a caller its limit once.
// Thread-safe.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "node/membership.h"
#include "node/peer_metrics.h"
#include "node/wire.h"
#include "obs/metrics.h"
#include "transfer/transport.h"

namespace mooncake::node {

struct PeerCall {
  // Whom it goes to. CallMany adds to the message that nobody else is meant.
  void Address(const LeaseRecord& lease) {
    peer = lease.id;
    endpoint = lease.endpoint;
    instance = lease.instance;
  }

  NodeId peer;
  std::string endpoint;
  uint32_t instance = 0;
  MessageType type = MessageType::kPing;
  std::string message;
  std::vector<ConstBytes> payload;
  uint64_t deadline_ms = 0;
  CallObserver* observer = nullptr;
  bool even_if_suspected = false;

  Status status;  // Out.
  CallFailure failure = CallFailure::kNone;
  bool gone = false;  // Of a failure: nobody serves at its address, as of now or a moment ago.
};

// For replies that are a message and nothing else.
class MessageReply : public CallObserver {
 public:
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override;
  std::string text;
};

class Peers {
 public:
  // `stall_ms`: silence for this long is evidence; a shorter deadline that passed is not.
  Peers(Runtime& runtime, Transport& transport, Membership& membership, Metrics& metrics,
        uint64_t stall_ms);

  void CallMany(std::span<PeerCall> calls);

  // One request that needs no payload, to each of several peers at once. The reply of a peer
  // that failed is its error. A reply that does not parse is kTransport. Suspected ones are waited
  // for until `suspects_until_ms`; 0: they are not asked.
  template <typename ReplyMessage, typename RequestMessage>
  std::vector<Result<ReplyMessage>> AskMany(std::span<const routing::ViewNode* const> peers,
                                            MessageType type,
                                            std::span<const RequestMessage> requests,
                                            uint64_t deadline_ms, uint64_t suspects_until_ms = 0);
  template <typename ReplyMessage, typename RequestMessage>
  Result<ReplyMessage> Ask(const routing::ViewNode& peer, MessageType type,
                           const RequestMessage& request, uint64_t deadline_ms) {
    const routing::ViewNode* peers[] = {&peer};
    const RequestMessage requests[] = {request};
    return std::move(AskMany<ReplyMessage, RequestMessage>(peers, type, requests, deadline_ms)[0]);
  }

  // Drops the kept connections to a node that is gone.
  void Forget(std::string_view endpoint) { transport_.Forget(endpoint); }

  // From now on no call lasts longer than this, whatever its own deadline: the node is closing.
  void EndBy(uint64_t deadline_ms) { last_deadline_ms_.store(deadline_ms); }

  // Identifies this request for deduplication; reads leave the sequence 0.
  void FillOrigin(bool changes_something, v1::Origin* origin);

 private:
  Runtime& runtime_;
  Transport& transport_;
  Membership& membership_;
  PeerMetrics counts_;
  const uint64_t stall_ms_;
  std::atomic<uint64_t> next_sequence_;
  std::atomic<uint64_t> last_deadline_ms_{UINT64_MAX};
};

template <typename ReplyMessage, typename RequestMessage>
std::vector<Result<ReplyMessage>> Peers::AskMany(std::span<const routing::ViewNode* const> peers,
                                                 MessageType type,
                                                 std::span<const RequestMessage> requests,
                                                 uint64_t deadline_ms, uint64_t suspects_until_ms) {
  std::vector<MessageReply> replies(peers.size());
  std::vector<PeerCall> calls(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    calls[i].Address(peers[i]->lease);
    calls[i].type = type;
    calls[i].message = requests[i].SerializeAsString();
    calls[i].deadline_ms = deadline_ms;
    calls[i].observer = &replies[i];
    calls[i].even_if_suspected = suspects_until_ms != 0;
    if (suspects_until_ms != 0 && peers[i]->lease.suspect) calls[i].deadline_ms = suspects_until_ms;
  }
  CallMany(calls);
  std::vector<Result<ReplyMessage>> results;
  results.reserve(peers.size());
  for (size_t i = 0; i < peers.size(); ++i) {
    ReplyMessage message;
    if (!calls[i].status.ok()) {
      results.emplace_back(std::move(calls[i].status).error());
    } else if (!message.ParseFromString(replies[i].text)) {
      results.emplace_back(TransportError(calls[i].endpoint + ": malformed reply"));
    } else {
      results.emplace_back(std::move(message));
    }
  }
  return results;
}

}  // namespace mooncake::node

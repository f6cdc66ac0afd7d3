// Transport port: how nodes reach each other. Two kinds of traffic:
//
//  - Calls: a request message plus raw payload bytes, answered by a reply of the same shape.
//    Payloads are gathered from and scattered into memory that the two ends name, without a
//    copy in between: each side decides, once it has seen the message, where the payload goes.
//  - One-sided access to memory that a peer registered, by token and offset, for adapters that
//    have it (rdma, shm, memory); Capabilities says so, others answer kUnsupported.
//
// The calling thread does its own I/O. A batch of calls to many peers is sent to all of them
// before the first reply is awaited, and a peer that is silent costs the batch one stall limit.
// When CallMany or AccessMany returns, no byte of the caller's memory is touched any more.
//
// Adapters: memory (one process; also the simulated network), tcp. All pass the contract suite
// in tests/unit/transfer/contract.h. Thread-safe, except Listen and Close.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/bytes.h"
#include "mooncake/result.h"

namespace mooncake {

inline constexpr uint32_t kMessageSizeMax = 32u << 20;  // Of one message, without payload.
// Of one payload. Above any segment; catches a length that is really something else.
inline constexpr uint64_t kPayloadSizeMax = uint64_t{1} << 44;

// What the caller of a Call learns and decides while it runs. Called on the calling thread.
class CallObserver {
 public:
  virtual ~CallObserver() = default;

  // The payload bytes [chunk] of piece `piece` are about to be handed to the network, in order,
  // in chunks small enough to stay in cache. A later piece may still be written to until its
  // own first OnSend (a trailing checksum, for example). May be called again from the start of
  // the payload when the call is retried on a fresh connection: OnRestart comes before.
  virtual void OnSend(size_t piece, ConstBytes chunk) { (void)piece, (void)chunk; }
  virtual void OnRestart() {}
  // The payload's last bytes that wait until all before them were handed to the network. OnEnd then
  // says whether they follow. An error ends the call with it (kLocal): the peer never has the whole
  // request, so it serves nothing. 0: nothing waits, nobody asks.
  virtual uint64_t EndSize() const { return 0; }
  virtual Status OnEnd() { return Ok(); }

  // The reply's message has arrived, `payload_size` bytes follow. Returns where they go: the
  // pieces' sizes add up to payload_size; a piece with data() == nullptr is read and dropped.
  // The pieces stay valid until the call ends. An error ends the call with it.
  virtual Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                        uint64_t payload_size) = 0;
  // Reply bytes have arrived in `chunk`, part of piece `piece`; in order, still in cache.
  virtual void OnReceive(size_t piece, ConstBytes chunk) { (void)piece, (void)chunk; }
};

enum class CallFailure : uint8_t {
  kNone,
  kRefused,   // Nobody listens there: the process is gone. Nothing was sent.
  kBroken,    // The connection ended; the request may or may not have been served.
  kStranger,  // The other end is there, and is not of this cluster: its secret differs.
  kStalled,   // No byte moved for the stall limit, or the deadline passed.
  kLocal,     // This side gave up: closed, interrupted, out of descriptors, OnReply's error.
};

struct Call {
  std::string_view endpoint;  // "host:port" as in the peer's lease.
  uint16_t type = 0;          // MessageType of the node protocol; opaque here.
  std::string_view message;
  std::span<const ConstBytes> payload;
  uint64_t deadline_ms = 0;          // Runtime::NowMs scale. Travels to the peer as time left.
  CallObserver* observer = nullptr;  // Not null.

  Status status;  // Out. kTransport for everything the network did.
  CallFailure failure = CallFailure::kNone;
  // Of a failure: the last attempt to connect was refused, so nobody serves there any more.
  bool nobody_listens = false;
};

struct IncomingRequest {
  uint16_t type = 0;
  std::string_view message;  // Valid until the ServerCall is destroyed.
  uint64_t payload_size = 0;
  uint64_t deadline_ms = 0;  // In this node's Runtime::NowMs scale.
};

struct Reply {
  std::string message;
  std::vector<ConstBytes> payload;  // Stays valid until the ServerCall is destroyed.
};

// One request being served. Destroyed when its reply has left, or the connection broke at any
// point before; the destructor gives back whatever the call still holds (pins, reservations).
// The methods are called one after the other, never at the same time. Prepare and Run are first
// tried on an event loop with may_block false; one that would wait on anything returns false
// without effect and is called again on a worker thread with may_block true (returns true then).
class ServerCall {
 public:
  virtual ~ServerCall() = default;
  // Decides where the payload goes: after it, PayloadTargets is valid.
  virtual bool Prepare(bool may_block) = 0;
  // Pieces whose sizes add up to payload_size; data() == nullptr drops the bytes of a piece.
  virtual std::span<const MutableBytes> PayloadTargets() = 0;
  // The payload is there: serve. Fills `reply`.
  virtual bool Run(bool may_block, Reply& reply) = 0;
};

class Service {
 public:
  virtual ~Service() = default;
  // nullptr: malformed or unknown; the connection is closed and counted. Does not block.
  virtual std::unique_ptr<ServerCall> Accept(const IncomingRequest& request) = 0;
};

struct RemoteAccess {
  std::string_view endpoint;
  std::string_view token;  // From the peer's RegisterMemory.
  uint64_t offset = 0;     // Into the registered range.
  MutableBytes local;      // Read into, or written from.
  bool write = false;
  Status status;  // Out.
};

struct TransportCapabilities {
  bool one_sided = false;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual TransportCapabilities Capabilities() const = 0;

  // Starts to serve. Returns the endpoint "host:port" that peers dial (the port is filled in
  // when 0 was asked). `service` outlives Close. kInvalidArgument names a port in use.
  virtual Result<std::string> Listen(const std::string& host, uint16_t port, Service* service) = 0;

  // Fills status and failure of every call.
  virtual void CallMany(std::span<Call> calls) = 0;

  // Makes a range reachable for one-sided access; the token goes to peers. The adapter that has
  // no one-sided access returns an empty token.
  virtual Result<std::string> RegisterMemory(MutableBytes range) = 0;
  virtual void UnregisterMemory(MutableBytes range) = 0;
  virtual void AccessMany(std::span<RemoteAccess> accesses) = 0;

  // Drops pooled connections to a peer (it is gone or came back as another incarnation).
  virtual void Forget(std::string_view endpoint) = 0;

  // Stops serving and ends the calls in progress with kLocal, within a second. Idempotent.
  virtual void Close() = 0;
};

}  // namespace mooncake

// ClientCall: one call of CallMany as a state machine over one connection. Advance does the next
// piece of I/O, blocking or not, so that one code serves a single call and a batch.
#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "obs/metrics.h"
#include "runtime/runtime.h"
#include "transfer/tcp/frame.h"
#include "transfer/tcp/pieces.h"
#include "transfer/tcp/pool.h"
#include "transfer/tcp/tcp_transport.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// What all calls of a transport share. Everything in it is thread-safe.
struct ClientContext {
  ClientContext(Runtime& runtime_in, const TcpOptions& options_in, Metrics* metrics);
  void CountBytes(bool write, bool ok, uint64_t bytes);

  Runtime& runtime;
  const TcpOptions& options;
  ConnectionPool pool;
  std::atomic<bool> closed = false;  // Set once; a call that misses it sees it a slice later.
  Counter* bytes[2][2] = {};         // [write][ok]; null without metrics.
  Counter* operations[2][2] = {};    // Calls that moved bytes in that direction.
};

class ClientCall {
 public:
  // Both outlive this object.
  ClientCall(ClientContext& context, Call& call) : context_(context), call_(call) {}

  enum class Wait : uint8_t { kDone, kRead, kWrite };
  struct Progress {
    Wait wait = Wait::kDone;
    bool moved = false;  // It may be worth calling Advance again before waiting.
  };

  // Takes a connection or starts to connect. Does not wait.
  Progress Start(uint64_t now_ms);
  // One step: at most one chunk is sent or received. `flags` is MSG_DONTWAIT, or 0 to wait
  // inside the system call for a slice at most.
  Progress Advance(int flags);
  // Ends the call (or its connection attempt) when a limit has passed, the transport closed or,
  // if asked to look, the runtime interrupts the thread.
  Progress CheckLimits(uint64_t now_ms, bool poll_interrupt);
  // When CheckLimits could act if no byte moves until then.
  uint64_t LimitMs() const;

  bool connecting() const { return phase_ == Phase::kConnect; }
  int fd() const { return connection_->fd.get(); }

 private:
  enum class Phase : uint8_t {
    kConnect,
    kSendHello,
    kAwaitHello,
    kSendProof,
    kAwaitVerdict,
    kSend,
    kAwaitReply,
    kReceive,
    kDone,
  };
  enum class Io : uint8_t { kDone, kAgain, kEnded, kHeldBack };

  Progress Connect(uint64_t now_ms);
  Progress ConnectNext(uint64_t now_ms, int last_error);
  Progress FinishConnect(int flags);
  void AddHello();
  void PrepareRequest();

  size_t Wanted() const;
  Io SendText(int flags);     // head_ alone.
  Io SendRequest(int flags);  // head_, the message and the next chunk of the payload.
  uint64_t ChunkToAnnounce();
  Io Transmit(std::span<iovec> iovecs, int flags, size_t& sent);
  Io Fill(size_t wanted, int flags);
  Io ReceiveChunk(int flags);

  Progress AfterSend(Io io);
  Progress OnHello();
  Progress OnVerdict();
  Progress OnReplyHead();
  Progress OnReplyMessage(const FrameHeader& header);
  void TakeBuffered();

  Progress Finish(Status status, CallFailure failure);
  Progress Broken(std::string_view what);
  Progress Complete();
  Progress Now() const;

  ClientContext& context_;
  Call& call_;
  std::unique_ptr<Connection> connection_;
  Phase phase_ = Phase::kDone;
  bool reused_ = false;         // From the pool, and no byte of the reply has come.
  bool sent_before_ = false;    // A part of the request went out on an earlier connection.
  bool hello_pending_ = false;  // The server's hello comes ahead of the reply.
  bool moved_ = false;          // Since last_move_ms_ was set.
  bool drained_ = false;        // The last receive emptied the socket.
  int send_error_ = 0;
  Status end_verdict_;  // Of the observer; an error after Io::kHeldBack.

  std::vector<SocketAddress> addresses_;
  size_t next_address_ = 0;
  uint64_t connect_until_ms_ = 0;
  uint64_t last_move_ms_ = 0;

  Hello hello_;
  Hello server_hello_;
  char head_[sizeof(Hello) + sizeof(FrameHeader)];
  size_t head_size_ = 0;
  uint64_t text_sent_ = 0;             // Of head_ and the message together.
  PieceCursor<ConstBytes> announced_;  // What OnSend saw runs ahead of what is sent.
  PieceCursor<ConstBytes> unsent_;
  PieceCursor<MutableBytes> targets_;
  uint64_t sent_ = 0;      // Of the payloads,
  uint64_t received_ = 0;  // for the metrics.
};

// Runs the calls to their ends on the calling thread.
void RunCalls(ClientContext& context, std::span<Call> calls);

}  // namespace mooncake::transfer

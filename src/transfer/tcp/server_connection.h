// ServerConnection: one accepted connection as a state machine. It belongs to one event loop,
// which lends it to a worker while a request may block; nobody else touches it, so it has no
// lock.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "obs/metrics.h"
#include "runtime/runtime.h"
#include "transfer/tcp/frame.h"
#include "transfer/tcp/input_buffer.h"
#include "transfer/tcp/pieces.h"
#include "transfer/tcp/socket.h"
#include "transfer/tcp/tcp_transport.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// What all connections of a server share. Everything in it is thread-safe.
struct ServerContext {
  ServerContext(Runtime& runtime_in, const TcpOptions& options_in, Metrics* metrics_in,
                Service* service_in)
      : runtime(runtime_in), options(options_in), metrics(metrics_in), service(service_in) {}

  // Counts and logs (rate-limited) why a connection is closed: `reason` is a short constant.
  void Rejected(const char* reason);

  Runtime& runtime;
  const TcpOptions& options;
  Metrics* const metrics;
  Service* const service;
  uint32_t connections_max = 0;  // Constant once accepting begins.
  // Open ones, in all loops, from accept to the end of ServerConnection. A limit, so relaxed.
  std::atomic<uint32_t> connections = 0;
};

class ServerConnection {
 public:
  // What the connection waits for.
  enum class Next : uint8_t { kRead, kWrite, kWorker, kClose };

  ServerConnection(ServerContext& context, UniqueFd fd, uint64_t now_ms);
  ~ServerConnection();  // Destroys the call in progress.
  ServerConnection(const ServerConnection&) = delete;
  ServerConnection& operator=(const ServerConnection&) = delete;

  // Goes on as far as it can without waiting. On the loop's thread.
  Next OnReady(uint64_t now_ms);
  // After kWorker, on a worker: what may block, and the reply if the socket takes it. OnReady
  // comes next.
  void RunBlocking();
  // Whether it has been silent for too long for what it is doing. Gives back idle memory.
  bool Expired(uint64_t now_ms);
  // When it last said anything, if it asks for nothing now: it may go for another one. 0: it does.
  uint64_t SilentSince() const;

  int fd() const { return fd_.get(); }

  // The loop's notes about it.
  uint32_t registered_events = 0;  // With epoll; 0: not registered.
  bool lent = false;               // To a worker.

 private:
  enum class Phase : uint8_t {
    kHello,
    kProof,
    kDrain,
    kHead,
    kPrepare,
    kPayload,
    kRun,
    kReply,
    kBroken,
  };
  enum class Io : uint8_t { kDone, kAgain, kEnded };
  // A step goes on (kGo) or says what it waits for.
  enum class Step : uint8_t { kGo, kRead, kWrite, kWorker, kClose };

  Step StepOnce();
  Step OnHello();
  Step OnProof();
  Step Refuse(const char* reason);
  Step Drain();
  Step OnHead();
  Step Reject(const char* reason);
  void BeginPayload();
  void BeginReply();
  void EndCall();

  size_t WantedHead() const;
  Io Fill(size_t wanted);
  Io ReceivePayload();
  Io SendReply();

  ServerContext& context_;
  UniqueFd fd_;
  Phase phase_ = Phase::kHello;
  InputBuffer in_;
  bool drained_ = false;  // The socket had no more the last time.
  int turns_ = 0;         // System calls in this OnReady; bounds how long others wait.
  uint64_t now_ms_;       // Of this OnReady.
  uint64_t moved_ms_;     // When a byte last moved,
  uint64_t entered_ms_;   // and when the handshake, draining or the head of a request began.
  bool asked_ = false;    // A request has come.
  uint64_t deadline_ms_ = 0;

  Hello client_hello_;
  Hello server_hello_;
  FrameHeader request_;
  std::unique_ptr<ServerCall> call_;
  PieceCursor<MutableBytes> targets_;
  Reply reply_;
  std::string out_;         // Hello, verdict and the reply's header: what goes before reply_.
  uint64_t text_sent_ = 0;  // Of out_ and the reply's message together.
  PieceCursor<ConstBytes> unsent_;
};

}  // namespace mooncake::transfer

// A connection to a gRPC server, for unary calls one after the other. It has no threads and no
// descriptor but its socket, so it does not trouble a process that forks.
//
// Used by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "base/hostport.h"
#include "metadata/net/grpc_session.h"
#include "metadata/net/stream.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

class GrpcConnection {
 public:
  struct Options {
    std::string name;  // Begins every error message.
    std::string host;
    uint16_t port = 0;
    std::optional<TlsOptions> tls;
    size_t reply_bytes_max = 0;  // Of one message.
  };
  // `end_by_ms` is as of Stream; it outlives the connection.
  GrpcConnection(Options options, const std::atomic<uint64_t>& end_by_ms, Runtime& runtime);

  // Deadlines and errors are as of Stream.
  Status Connect(uint64_t deadline_ms);
  // Any reply is a success, whatever its code. kMetadata: the connection failed, or what came is
  // no reply; whether the call took effect is unknown. Only destruction is left then.
  Result<GrpcReply> Call(const GrpcCall& call, uint64_t deadline_ms);

  // After an error: the other side ended the call or the connection, so another one may do.
  bool broken() const { return stream_.broken() || session_.cut(); }
  // Whether an unused connection still looks usable. Answers what the server asked meanwhile
  // (HTTP/2 has pings), without waiting for anything.
  bool Idle();
  // After an error: what answers may not speak HTTP/2 at all.
  bool foreign() const { return !session_.greeted() && (broken() || session_.failed()); }

 private:
  Error Named(const Error& error) const;

  const Options options_;
  Stream stream_;
  GrpcSession session_;
};

}  // namespace mooncake::metadata

#include "client/dummy/unary_call.h"

#include <fmt/format.h>

#include "base/hostport.h"
#include "metadata/net/grpc_connection.h"

namespace mooncake::client {

namespace {

constexpr size_t kReplyBytesMax = 60'000;

}  // namespace

Result<std::string> UnaryCall::Run(const std::atomic<uint64_t>& end_by_ms, Runtime& runtime) const {
  const auto as_ours = [&](const Error& error) {
    const bool named = error.context.find(address) != std::string::npos;
    return TransportError(named ? error.context
                                : fmt::format("daemon {}: {}", address, error.context));
  };
  MC_TRY(const base::HostPort parsed, base::ParseHostPort("server_address", address));
  metadata::GrpcConnection connection({.name = "daemon " + address,
                                       .host = parsed.host,
                                       .port = parsed.port.value_or(0),
                                       .tls = std::nullopt,
                                       .reply_bytes_max = kReplyBytesMax},
                                      end_by_ms, runtime);
  const Status connected = connection.Connect(deadline_ms);
  if (!connected.ok()) return as_ours(connected.error());
  Result<metadata::GrpcReply> reply =
      connection.Call({.method = method, .message = message}, deadline_ms);
  if (!reply) {
    const Error error = as_ours(reply.error());
    if (!connection.foreign() || connection.broken()) return error;
    return TransportError(fmt::format("{}; what answers is not a daemon", error.context));
  }
  if (reply->code != 0) {
    return TransportError(
        fmt::format("daemon {}: {} was refused ({}); is that a daemon of this version?", address,
                    method, reply->refusal));
  }
  return std::move(reply->message);
}

}  // namespace mooncake::client

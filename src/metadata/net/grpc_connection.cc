#include "metadata/net/grpc_connection.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace mooncake::metadata {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
constexpr int kIdleReadsMax = 8;
constexpr uint64_t kAtOnce = 0;  // A deadline that has passed: no wait.

}  // namespace

GrpcConnection::GrpcConnection(Options options, const std::atomic<uint64_t>& end_by_ms,
                               Runtime& runtime)
    : options_(std::move(options)),
      stream_(options_.name, end_by_ms, runtime),
      session_(base::JoinHostPort(options_.host, options_.port), options_.tls.has_value(),
               options_.reply_bytes_max) {}

Error GrpcConnection::Named(const Error& error) const {
  if (session_.cut()) return MetadataError(fmt::format("{}: {}", options_.name, error.context));
  return MetadataError(fmt::format("{}: no answer of gRPC: {}", options_.name, error.context));
}

Status GrpcConnection::Connect(uint64_t deadline_ms) {
  std::optional<TlsOptions> tls = options_.tls;
  if (tls) tls->protocol = "h2";
  return stream_.Connect(options_.host, options_.port, tls, deadline_ms);
}

Result<GrpcReply> GrpcConnection::Call(const GrpcCall& call, uint64_t deadline_ms) {
  if (Status begun = session_.Begin(call); !begun) return Named(begun.error());
  std::array<char, kReadBytes> bytes;
  while (true) {  // Until the deadline, and the bound of the session.
    const Result<std::string> wire = session_.TakeOutput();
    if (!wire) return Named(wire.error());
    if (!wire->empty()) MC_RETURN_IF_ERROR(stream_.Send(*wire, deadline_ms));
    if (session_.ended()) break;
    MC_TRY(const size_t count, stream_.Receive(bytes, deadline_ms));
    if (Status taken = session_.AddInput({bytes.data(), count}); !taken) {
      return Named(taken.error());
    }
  }
  Result<GrpcReply> reply = session_.TakeReply();
  if (!reply) return Named(reply.error());
  return reply;
}

bool GrpcConnection::Idle() {
  std::array<char, kReadBytes> bytes;
  for (int i = 0; i < kIdleReadsMax && session_.Ready(); ++i) {
    const Result<size_t> count = stream_.ReceiveReady(bytes);
    if (!count) return false;
    if (*count == 0) return true;
    if (!session_.AddInput({bytes.data(), *count})) return false;
    const Result<std::string> wire = session_.TakeOutput();
    if (!wire || (!wire->empty() && !stream_.Send(*wire, kAtOnce))) return false;
  }
  return false;
}

}  // namespace mooncake::metadata

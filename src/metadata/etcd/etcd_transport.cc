#include "metadata/etcd/etcd_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "metadata/etcd/etcd_messages.h"

namespace mooncake::metadata {
namespace {

constexpr size_t kIdleMax = 8;
// Several, as members that are cut off again and again (a rolling restart) break more than one
// connection in a row. The pauses double up to the longest.
constexpr int kTriesMax = 10;
constexpr uint64_t kPauseMsMax = 64;

// Of one reply, such as the leases of a whole cluster.
constexpr size_t kReplyBytesMax = size_t{256} << 20;

constexpr std::string_view kAuthenticate = "/etcdserverpb.Auth/Authenticate";

constexpr int kCancelledCode = 1;
constexpr int kUnknownCode = 2;
constexpr int kInvalidArgumentCode = 3;
constexpr int kDeadlineCode = 4;
constexpr int kUnavailableCode = 14;
constexpr int kPermissionDeniedCode = 7;
constexpr int kFailedPreconditionCode = 9;
constexpr int kInternalCode = 13;
constexpr int kUnauthenticatedCode = 16;

// Of what became of the request; a proxy's error comes so, too.
bool SaysNothing(int code) {
  return code == kCancelledCode || code == kUnknownCode || code == kInternalCode;
}

// This member cannot answer just now; another one may.
bool IsAway(const GrpcReply& reply) {
  return reply.code == kUnavailableCode || reply.code == kDeadlineCode;
}

// Of a login: nobody of this name and password, no users at all, or not allowed. What else may be
// wrong, such as a server that lags behind, passes.
bool IsDenial(const GrpcReply& reply) {
  return reply.code == kInvalidArgumentCode || reply.code == kPermissionDeniedCode ||
         reply.code == kFailedPreconditionCode || reply.code == kUnauthenticatedCode;
}

// Tokens end with the server's process, and with every change of its users.
bool TokenIsOld(const GrpcReply& reply) {
  if (reply.code == kUnauthenticatedCode) return true;
  return reply.code == kInvalidArgumentCode &&
         (reply.refusal.find("auth token") != std::string::npos ||
          reply.refusal.find("auth store is old") != std::string::npos);
}

}  // namespace

EtcdTransport::EtcdTransport(EtcdAddress address, EtcdTimeouts timeouts, Runtime& runtime)
    : address_(std::move(address)), timeouts_(timeouts), runtime_(runtime) {}

uint64_t EtcdTransport::Exchange(uint64_t deadline_ms, uint64_t limit_ms) const {
  return std::min(deadline_ms, runtime_.NowMs() + limit_ms);
}

Result<std::string> EtcdTransport::Call(const EtcdRequest& request, uint64_t deadline_ms,
                                        EtcdFault& fault) {
  Result<std::string> answer = std::string();
  denied_.store(false, std::memory_order_relaxed);
  size_t gone = 0;
  for (int i = 0; i < kTriesMax; ++i) {
    if (i > 1) runtime_.SleepMs(std::min(uint64_t{1} << i, kPauseMsMax));
    if (i > 0 && runtime_.NowMs() >= std::min(deadline_ms, end_by_ms_.load())) break;
    Next next = Next::kStop;
    fault = {};
    answer = Try(request, deadline_ms, fault, next);
    if (answer.ok() || next == Next::kStop) return answer;
    if (fault.uncertain && !request.repeatable) return answer;
    // All of them are gone: trying on would only take time.
    if (next == Next::kOtherMember && ++gone >= address_.endpoints.size()) return answer;
  }
  return answer;
}

Result<std::string> EtcdTransport::Try(const EtcdRequest& request, uint64_t deadline_ms,
                                       EtcdFault& fault, Next& next) {
  const size_t member = member_.load(std::memory_order_relaxed) % address_.endpoints.size();
  MC_TRY(Connection connection, Take(member, deadline_ms, next));
  MC_TRY(const std::string token, Token(connection, deadline_ms, next));
  Result<GrpcReply> reply =
      connection.grpc->Call({.method = request.method, .message = request.message, .token = token},
                            Exchange(deadline_ms, timeouts_.io_ms));
  if (!reply) {
    fault.uncertain = true;
    next = AfterFailure(connection, reply.code());
    return Failed(connection, reply.error());
  }
  fault.code = reply->code;
  fault.uncertain = SaysNothing(reply->code);
  if (IsAway(*reply)) {
    fault.uncertain = true;  // Such as a change of the leader, which may have heard of it.
    next = Next::kAgain;
    Leave(member);
    return Refused(member, reply->refusal);
  }
  GiveBack(std::move(connection));
  if (reply->code == 0) return std::move(reply->message);
  if (TokenIsOld(*reply) && !token.empty()) {  // It was refused before it did anything.
    ForgetToken(token);
    next = Next::kAgain;
  }
  return Refused(member, reply->refusal);
}

void EtcdTransport::Leave(size_t member) { member_.store(member + 1, std::memory_order_relaxed); }

EtcdTransport::Next EtcdTransport::AfterFailure(const Connection& connection, ErrorCode code) {
  if (code != ErrorCode::kMetadata) return Next::kStop;
  Leave(connection.member);
  return connection.grpc->broken() ? Next::kAgain : Next::kOtherMember;
}

Error EtcdTransport::Failed(const Connection& connection, const Error& error) const {
  if (error.code != ErrorCode::kMetadata || !connection.grpc->foreign()) return error;
  return MetadataError(fmt::format("{}; is it an etcd{}?", error.context,
                                   address_.tls ? "" : ", and does it want TLS (?tls=true)"));
}

Error EtcdTransport::Refused(size_t member, std::string_view why) const {
  return MetadataError(fmt::format("{}: {}", address_.endpoints[member].ToString(), why));
}

Result<EtcdTransport::Connection> EtcdTransport::Take(size_t member, uint64_t deadline_ms,
                                                      Next& next) {
  for (size_t i = 0; i <= kIdleMax; ++i) {  // Each round takes one away.
    Connection connection;
    {
      base::MutexLock lock(mu_);
      if (idle_.empty()) break;
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    if (connection.member == member && connection.grpc->Idle()) return connection;
  }
  const EtcdEndpoint& endpoint = address_.endpoints[member];
  GrpcConnection::Options options{.name = endpoint.ToString(),
                                  .host = endpoint.host,
                                  .port = endpoint.port,
                                  .tls = address_.tls,
                                  .reply_bytes_max = kReplyBytesMax};
  Connection made{member,
                  std::make_unique<GrpcConnection>(std::move(options), end_by_ms_, runtime_)};
  Status connected = made.grpc->Connect(Exchange(deadline_ms, timeouts_.connect_ms));
  if (connected.ok()) return made;
  next = AfterFailure(made, connected.code());
  return std::move(connected).error();
}

void EtcdTransport::GiveBack(Connection connection) {
  base::MutexLock lock(mu_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(connection));
}

Result<std::string> EtcdTransport::Token(Connection& connection, uint64_t deadline_ms, Next& next) {
  if (address_.username.empty()) return std::string();
  {
    base::MutexLock lock(mu_);
    if (!token_.empty()) return token_;
  }
  return Login(connection, deadline_ms, next);
}

Result<std::string> EtcdTransport::Login(Connection& connection, uint64_t deadline_ms, Next& next) {
  const std::string message = LoginRequest(address_.username, address_.password);
  const Result<GrpcReply> reply = connection.grpc->Call(
      {.method = kAuthenticate, .message = message}, Exchange(deadline_ms, timeouts_.io_ms));
  if (!reply) {
    next = AfterFailure(connection, reply.code());
    return Failed(connection, reply.error());
  }
  if (IsAway(*reply)) {
    next = Next::kAgain;
    Leave(connection.member);
    return Refused(connection.member, reply->refusal);
  }
  if (reply->code != 0) {
    denied_.store(IsDenial(*reply), std::memory_order_relaxed);
    return Refused(connection.member,
                   "the server refused the user and password: " + reply->refusal);
  }
  MC_TRY(std::string token, LoginFrom(reply->message));
  base::MutexLock lock(mu_);
  token_ = token;
  return token;
}

void EtcdTransport::ForgetToken(const std::string& token) {
  base::MutexLock lock(mu_);
  if (token_ == token) token_.clear();
}

}  // namespace mooncake::metadata

#include "metadata/etcd/etcd_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace mooncake::metadata {
namespace {

constexpr size_t kIdleMax = 8;
// Several, as members that are cut off again and again (a rolling restart) break more than one
// connection in a row. The pauses double up to the longest.
constexpr int kTriesMax = 10;
constexpr uint64_t kPauseMsMax = 64;

// How a refusal begins that comes in the place of a stream.
constexpr std::string_view kStreamRefusal = "{\"error\"";

constexpr int kInvalidArgumentCode = 3;
constexpr int kDeadlineCode = 4;
constexpr int kUnavailableCode = 14;
constexpr int kPermissionDeniedCode = 7;
constexpr int kFailedPreconditionCode = 9;
constexpr int kUnauthenticatedCode = 16;
// A gateway's, or a proxy's, without a code of gRPC.
constexpr int kHttpUnavailable = 503;
constexpr int kHttpTimeout = 504;

// This member cannot answer just now; another one may.
bool IsAway(int status, const EtcdRefusal& refusal) {
  if (refusal.code == kUnavailableCode || refusal.code == kDeadlineCode) return true;
  return refusal.code == 0 && (status == kHttpUnavailable || status == kHttpTimeout);
}

// Of a login: nobody of this name and password, no users at all, or not allowed. What else may be
// wrong, such as a server that lags behind, passes.
bool IsDenial(const EtcdRefusal& refusal) {
  return refusal.code == kInvalidArgumentCode || refusal.code == kPermissionDeniedCode ||
         refusal.code == kFailedPreconditionCode || refusal.code == kUnauthenticatedCode;
}

// Tokens end with the server's process, and with every change of its users.
bool TokenIsOld(const EtcdRefusal& refusal) {
  if (refusal.code == kUnauthenticatedCode) return true;
  return refusal.code == kInvalidArgumentCode &&
         (refusal.message.find("auth token") != std::string::npos ||
          refusal.message.find("auth store is old") != std::string::npos);
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
  Result<HttpAnswer> answer = connection.http->Post(request.path, token, request.body,
                                                    Exchange(deadline_ms, timeouts_.io_ms));
  if (!answer) {
    fault.uncertain = true;
    next = AfterFailure(connection, answer.code());
    return answer.error();
  }
  if (answer->status == 200 && !answer->body.starts_with(kStreamRefusal)) {
    if (!answer->closes) GiveBack(std::move(connection));
    return std::move(answer->body);
  }
  const EtcdRefusal refusal = RefusalFromJson(answer->body);
  fault.code = refusal.code;
  if (IsAway(answer->status, refusal)) {
    fault.uncertain = true;  // Such as a change of the leader, which may have heard of it.
    next = Next::kAgain;
    Leave(member);
  }
  if (TokenIsOld(refusal) && !token.empty()) {  // It was refused before it did anything.
    ForgetToken(token);
    next = Next::kAgain;
  }
  return Refused(member, answer->status, refusal);
}

void EtcdTransport::Leave(size_t member) { member_.store(member + 1, std::memory_order_relaxed); }

EtcdTransport::Next EtcdTransport::AfterFailure(const Connection& connection, ErrorCode code) {
  if (code != ErrorCode::kMetadata) return Next::kStop;
  Leave(connection.member);
  return connection.http->broken() ? Next::kAgain : Next::kOtherMember;
}

Error EtcdTransport::Refused(size_t member, int status, const EtcdRefusal& refusal) const {
  const std::string name = address_.endpoints[member].ToString();
  if (refusal.code != 0) return MetadataError(fmt::format("{}: {}", name, refusal.message));
  return MetadataError(fmt::format(
      "{}: HTTP status {}; is it an etcd with its JSON gateway (--enable-grpc-gateway), and does "
      "it want TLS (?tls=true)?",
      name, status));
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
    if (connection.member == member && connection.http->Idle()) return connection;
  }
  Connection made{
      member, std::make_unique<HttpConnection>(address_.endpoints[member], end_by_ms_, runtime_)};
  Status connected = made.http->Connect(address_.tls, Exchange(deadline_ms, timeouts_.connect_ms));
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
  const Result<HttpAnswer> answer = connection.http->Post(
      "/v3/auth/authenticate", "", LoginToJson(address_.username, address_.password),
      Exchange(deadline_ms, timeouts_.io_ms));
  if (!answer) {
    next = AfterFailure(connection, answer.code());
    return answer.error();
  }
  if (answer->status != 200) {
    const EtcdRefusal refusal = RefusalFromJson(answer->body);
    const bool away = IsAway(answer->status, refusal);
    if (away) {
      next = Next::kAgain;
      Leave(connection.member);
    }
    if (away || refusal.code == 0) {
      return Refused(connection.member, answer->status, refusal);
    }
    denied_.store(IsDenial(refusal), std::memory_order_relaxed);
    return MetadataError(fmt::format("{}: the server refused the user and password: {}",
                                     address_.endpoints[connection.member].ToString(),
                                     refusal.message));
  }
  MC_TRY(std::string token, LoginFromJson(answer->body));
  base::MutexLock lock(mu_);
  token_ = token;
  return token;
}

void EtcdTransport::ForgetToken(const std::string& token) {
  base::MutexLock lock(mu_);
  if (token_ == token) token_.clear();
}

}  // namespace mooncake::metadata

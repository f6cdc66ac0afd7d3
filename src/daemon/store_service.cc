#include "daemon/store_service.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <deque>

#include "client/dummy/proof.h"
#include "mooncake/v1/store_daemon.grpc.pb.h"

namespace mooncake::daemon {

namespace {

constexpr int kMessageMax = 256 << 20;
constexpr size_t kScopesMax = 1'024;
constexpr size_t kScopeSizeMax = 4'096;
constexpr size_t kScopesShownBytes = 1'024;  // In an error.
constexpr size_t kNoncesMax = 4'096;
constexpr uint64_t kNonceMs = 60'000;

grpc::Status Refuse(grpc::StatusCode code, const std::string& text) { return {code, text}; }

grpc::Status StatusOf(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  switch (status.code()) {
    case ErrorCode::kInvalidArgument:
      return Refuse(grpc::StatusCode::INVALID_ARGUMENT, status.error().context);
    case ErrorCode::kBackPressure:
      return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, status.error().context);
    default: return Refuse(grpc::StatusCode::INTERNAL, status.error().context);
  }
}

// The nonces that were given out, oldest first.
class Nonces {
 public:
  std::optional<std::string> Give(uint64_t now_ms) {
    std::optional<std::string> nonce = client::NewNonce();
    if (!nonce) return nonce;
    base::MutexLock lock(mu_);
    given_.emplace_back(*nonce, now_ms);
    if (given_.size() > kNoncesMax) given_.pop_front();
    return nonce;
  }
  bool Take(const std::string& nonce, uint64_t now_ms) {
    base::MutexLock lock(mu_);
    for (auto it = given_.begin(); it != given_.end(); ++it) {
      if (it->first != nonce) continue;
      const bool fresh = now_ms - it->second <= kNonceMs;
      given_.erase(it);
      return fresh;
    }
    return false;
  }

 private:
  base::Mutex mu_;
  std::deque<std::pair<std::string, uint64_t>> given_ MC_GUARDED_BY(mu_);
};

}  // namespace

class StoreServer::Impl final : public v1::StoreDaemon::Service {
 public:
  explicit Impl(ServiceParts parts) : parts_(std::move(parts)) {}

  Result<uint16_t> Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // Clients ask often whether the daemon is alive.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(kMessageMax);
    builder.SetMaxSendMessageSize(kMessageMax);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    if (!server_ || port == 0) {
      server_.reset();
      return Conflict(fmt::format(
          "client_server_address \"{}\" cannot be bound: in use, or not an address of this host",
          address));
    }
    return static_cast<uint16_t>(port);
  }

  void Open(const std::string& socket_path) {
    base::MutexLock lock(mu_);
    parts_.socket_path = socket_path;
  }

  void Stop(uint64_t grace_ms) {
    if (!server_) return;
    server_->Shutdown(
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                     gpr_time_from_millis(static_cast<int64_t>(grace_ms), GPR_TIMESPAN)));
    server_->Wait();
    server_.reset();
  }

  grpc::Status Challenge(grpc::ServerContext*, const v1::ChallengeRequest*,
                         v1::ChallengeReply* reply) override {
    const std::optional<std::string> nonce = nonces_.Give(NowMs());
    if (!nonce) return Refuse(grpc::StatusCode::INTERNAL, "no random bytes");
    reply->set_nonce(*nonce);
    return grpc::Status::OK;
  }

  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest* request,
                     v1::HelloReply* reply) override {
    const Status welcome = Welcome(*request, reply);
    if (welcome.ok()) return grpc::Status::OK;
    // In the message, which our clients read, unlike the trailer that carries gRPC's own status.
    reply->Clear();
    reply->set_code(static_cast<int32_t>(welcome.code()));
    reply->set_error(welcome.error().context);
    return grpc::Status::OK;
  }

  Status Welcome(const v1::HelloRequest& request, v1::HelloReply* reply) {
    if (request.version() != client::kDaemonProtocolVersion) {
      return Unsupported(fmt::format("protocol version {}, this daemon speaks {}",
                                     request.version(), client::kDaemonProtocolVersion));
    }
    if (!parts_.secret.empty() && !Proven(request)) {
      parts_.sessions.NoteRefused("secret", "a dummy client without the cluster secret");
      return InvalidState("the cluster secret is missing or wrong (MC_STORE_RS_CLUSTER_SECRET)");
    }
    std::string socket_path;
    std::optional<uint32_t> domain;
    {
      base::MutexLock lock(mu_);
      socket_path = parts_.socket_path;
      domain = DomainLocked(request.scope());
      if (!domain) return NoScopeLocked(request.scope());
    }
    if (socket_path.empty()) return TransportError("still starting");
    const SessionPtr session = parts_.sessions.Create(*domain, request.pid());
    if (!session) return BackPressure("too many clients");
    reply->mutable_session()->set_high(session->id().high);
    reply->mutable_session()->set_low(session->id().low);
    reply->set_socket_path(socket_path);
    reply->set_node(parts_.store.NodeName());
    reply->set_lease_ms(kLeaseMs);
    return Ok();
  }

  grpc::Status Health(grpc::ServerContext*, const v1::HealthRequest* request,
                      v1::HealthReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.Health(reply)) : Unknown();
  }

  grpc::Status Put(grpc::ServerContext*, const v1::PutRequest* request,
                   v1::CodesReply* reply) override {
    const SessionPtr session = SessionOf(*request);
    return session ? StatusOf(parts_.calls.Put(*session, *request, reply)) : Unknown();
  }

  grpc::Status Acquire(grpc::ServerContext*, const v1::AcquireRequest* request,
                       v1::AcquireReply* reply) override {
    const SessionPtr session = SessionOf(*request);
    return session ? StatusOf(parts_.calls.Acquire(*session, *request, reply)) : Unknown();
  }

  grpc::Status Exist(grpc::ServerContext*, const v1::KeysRequest* request,
                     v1::CodesReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.Exist(*request, reply)) : Unknown();
  }

  grpc::Status Remove(grpc::ServerContext*, const v1::KeysRequest* request,
                      v1::CodesReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.Remove(*request, reply)) : Unknown();
  }

  grpc::Status Sizes(grpc::ServerContext*, const v1::KeysRequest* request,
                     v1::SizesReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.Sizes(*request, reply)) : Unknown();
  }

  grpc::Status RemoveAll(grpc::ServerContext*, const v1::RemoveAllRequest* request,
                         v1::RemoveAllReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.RemoveAll(*request, reply)) : Unknown();
  }

  grpc::Status Metrics(grpc::ServerContext*, const v1::MetricsRequest* request,
                       v1::MetricsReply* reply) override {
    return SessionOf(*request) ? StatusOf(parts_.calls.Metrics(reply)) : Unknown();
  }

 private:
  uint64_t NowMs() { return parts_.store.parts().runtime->NowMs(); }

  bool Proven(const v1::HelloRequest& request) {
    return nonces_.Take(request.nonce(), NowMs()) &&
           client::SameProof(request.proof(), client::ProofOf(parts_.secret, request.nonce()));
  }

  std::optional<uint32_t> DomainLocked(const std::string& scope) MC_REQUIRES(mu_) {
    const auto found = parts_.scopes.find(scope);
    if (found != parts_.scopes.end()) return found->second;
    const bool sane = !scope.empty() && scope.size() <= kScopeSizeMax;
    if (!parts_.any_scope || !sane || parts_.scopes.size() >= kScopesMax) return std::nullopt;
    return parts_.scopes.emplace(scope, static_cast<uint32_t>(parts_.scopes.size())).first->second;
  }

  Error NoScopeLocked(const std::string& scope) const MC_REQUIRES(mu_) {
    std::string served;
    for (const auto& [name, domain] : parts_.scopes) {
      if (served.size() > kScopesShownBytes) {
        served += ", ...";
        break;
      }
      served.append(served.empty() ? "" : ", ").append(name);
    }
    return InvalidState(
        fmt::format("worker scope \"{}\" is not served here; served: {}", scope, served));
  }

  template <typename Request>
  SessionPtr SessionOf(const Request& request) {
    SessionPtr session = parts_.sessions.Find({request.session().high(), request.session().low()});
    return session && session->attached() ? session : nullptr;
  }

  static grpc::Status Unknown() {
    return Refuse(grpc::StatusCode::FAILED_PRECONDITION, "unknown session");
  }

  ServiceParts parts_;
  Nonces nonces_;
  base::Mutex mu_;  // Guards parts_.socket_path and parts_.scopes.
  std::unique_ptr<grpc::Server> server_;
};

StoreServer::StoreServer(std::unique_ptr<Impl> impl, uint16_t port)
    : impl_(std::move(impl)), port_(port) {}

StoreServer::~StoreServer() { Stop(0); }

Result<std::unique_ptr<StoreServer>> StoreServer::Start(const std::string& address,
                                                        ServiceParts parts) {
  auto impl = std::make_unique<Impl>(std::move(parts));
  MC_TRY(const uint16_t port, impl->Listen(address));
  return std::make_unique<StoreServer>(std::move(impl), port);
}

void StoreServer::Open(const std::string& socket_path) { impl_->Open(socket_path); }

void StoreServer::Stop(uint64_t grace_ms) { impl_->Stop(grace_ms); }

}  // namespace mooncake::daemon

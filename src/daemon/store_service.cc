#include "daemon/store_service.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <deque>

#include "client/dummy/proof.h"
#include "mooncake/v1/store_daemon.grpc.pb.h"

namespace mooncake::daemon {

namespace {

namespace v1 = ::mooncake::daemon::v1;
using client::kInlineMessageMax;
using client::kInlineValueMax;

constexpr size_t kItemsMax = 8'192;
constexpr int kMessageMax = 256 << 20;
constexpr uint64_t kLeaseMs = 60'000;       // What a client may count on.
constexpr uint64_t kLeaseGraceMs = 15'000;  // What it gets on top.
constexpr size_t kScopesMax = 1'024;
constexpr size_t kScopeSizeMax = 4'096;
constexpr size_t kNoncesMax = 4'096;
constexpr uint64_t kNonceMs = 60'000;

grpc::Status Refuse(grpc::StatusCode code, const std::string& text) { return {code, text}; }

grpc::Status Malformed(const std::string& what) {
  return Refuse(grpc::StatusCode::INVALID_ARGUMENT, "malformed request: " + what);
}

bool ReadKeys(const v1::Keys& keys, std::vector<std::string_view>* out) {
  const std::string_view blob = keys.blob();
  if (static_cast<size_t>(keys.sizes_size()) > kItemsMax) return false;
  uint64_t at = 0;
  out->reserve(static_cast<size_t>(keys.sizes_size()));
  for (uint32_t size : keys.sizes()) {
    if (size > blob.size() - at) return false;
    out->push_back(blob.substr(at, size));
    at += size;
  }
  return at == blob.size();
}

template <typename Reply>
void AddError(const Error& error, Reply* reply) {
  reply->add_codes(static_cast<int32_t>(error.code));
  reply->add_errors(error.context);
}

ReplicateConfig PolicyOf(const v1::ReplicatePolicy& policy) {
  ReplicateConfig replicate;
  replicate.replica_num = policy.replica_num();
  replicate.preferred_segments.assign(policy.preferred_segments().begin(),
                                      policy.preferred_segments().end());
  replicate.preferred_storage_owners.assign(policy.preferred_storage_owners().begin(),
                                            policy.preferred_storage_owners().end());
  replicate.prefer_local = policy.prefer_local();
  replicate.with_soft_pin = policy.with_soft_pin();
  replicate.prefer_alloc_in_same_node = policy.prefer_alloc_in_same_node();
  return replicate;
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

// The values of a put, where they lie.
struct PutPlan {
  std::vector<std::string_view> keys;
  std::vector<RegionPtr> regions;  // Keeps them mapped.
  std::vector<ConstBytes> pieces;
  std::vector<std::pair<size_t, size_t>> pieces_of;  // Begin and count, of each value.
  std::vector<bool> refused;                         // A piece names no memory of the client's.
};

bool ReadPut(const v1::PutRequest& request, const Session& session, PutPlan* plan) {
  if (!ReadKeys(request.keys(), &plan->keys)) return false;
  const size_t values = plan->keys.size();
  const int pieces = request.regions_size();
  if (static_cast<size_t>(request.piece_counts_size()) != values ||
      request.offsets_size() != pieces || request.sizes_size() != pieces) {
    return false;
  }
  std::map<uint64_t, RegionPtr> known;
  int next = 0;
  for (size_t i = 0; i < values; ++i) {
    const uint32_t count = request.piece_counts(static_cast<int>(i));
    if (count > static_cast<uint32_t>(pieces - next)) return false;
    plan->pieces_of.emplace_back(plan->pieces.size(), count);
    bool refused = false;
    for (uint32_t p = 0; p < count; ++p, ++next) {
      const uint64_t id = request.regions(next);
      ConstBytes memory = BytesOf(request.inline_bytes());
      if (id != 0) {
        auto [found, added] = known.try_emplace(id);
        if (added) found->second = session.Region(id);
        memory = found->second ? ConstBytes(found->second->bytes()) : ConstBytes();
      }
      const uint64_t offset = request.offsets(next);
      const uint64_t size = request.sizes(next);
      const bool inside = offset <= memory.size() && size <= memory.size() - offset;
      refused |= !inside;
      plan->pieces.push_back(inside ? memory.subspan(offset, size) : ConstBytes());
    }
    plan->refused.push_back(refused);
  }
  for (auto& [id, region] : known) plan->regions.push_back(std::move(region));
  return next == pieces;
}

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
      return InvalidArgument(fmt::format(
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
    if (request->version() != client::kDaemonProtocolVersion) {
      return Refuse(grpc::StatusCode::UNIMPLEMENTED,
                    fmt::format("protocol version {}, this daemon speaks {}", request->version(),
                                client::kDaemonProtocolVersion));
    }
    if (!parts_.secret.empty() && !Proven(*request)) {
      parts_.sessions.NoteRefused("secret", "a dummy client without the cluster secret");
      return Refuse(grpc::StatusCode::UNAUTHENTICATED,
                    "the cluster secret is missing or wrong (MC_STORE_RS_CLUSTER_SECRET)");
    }
    std::string socket_path;
    std::optional<uint32_t> domain;
    {
      base::MutexLock lock(mu_);
      socket_path = parts_.socket_path;
      domain = DomainLocked(request->scope());
      if (!domain) return NoScopeLocked(request->scope());
    }
    if (socket_path.empty()) return Refuse(grpc::StatusCode::UNAVAILABLE, "still starting");
    const SessionPtr session = parts_.sessions.Create(*domain, request->pid());
    if (!session) return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many clients");
    reply->mutable_session()->set_high(session->id().high);
    reply->mutable_session()->set_low(session->id().low);
    reply->set_socket_path(socket_path);
    reply->set_node(parts_.store.NodeName());
    reply->set_lease_ms(kLeaseMs);
    return grpc::Status::OK;
  }

  grpc::Status Health(grpc::ServerContext*, const v1::HealthRequest* request,
                      v1::HealthReply* reply) override {
    if (!SessionOf(*request)) return Unknown();
    reply->set_status(parts_.store.closed() ? 1 : 0);
    return grpc::Status::OK;
  }

  grpc::Status Put(grpc::ServerContext*, const v1::PutRequest* request,
                   v1::CodesReply* reply) override {
    const SessionPtr session = SessionOf(*request);
    if (!session) return Unknown();
    PutPlan plan;
    if (!ReadPut(*request, *session, &plan)) return Malformed("put");
    std::function<bool()> wanted;
    if (!plan.regions.empty()) {
      wanted = session->Watch(request->mark().slot(), request->mark().sequence());
      if (!wanted) return Malformed("a put from regions needs a mark");
    }
    std::vector<PutItem> items;
    for (size_t i = 0; i < plan.keys.size(); ++i) {
      if (plan.refused[i]) continue;
      const auto [begin, count] = plan.pieces_of[i];
      items.push_back({plan.keys[i], std::span(plan.pieces).subspan(begin, count)});
    }
    const ReplicateConfig replicate = PolicyOf(request->policy());
    const PutOptions options{request->tenant(), request->has_policy() ? &replicate : nullptr,
                             request->if_absent()};
    const std::vector<Status> statuses = parts_.store.PutWanted(items, options, wanted);
    if (wanted && !wanted()) TakeBack(items, statuses, request->tenant());
    size_t sent = 0;
    for (bool refused : plan.refused) {
      if (refused) {
        parts_.sessions.NoteRefused("region", "a put from memory that is not registered");
        AddError(InvalidArgument("the memory is not registered with the daemon"), reply);
      } else if (const Status& status = statuses[sent++]; !status.ok()) {
        AddError(status.error(), reply);
      } else {
        reply->add_codes(0);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status Acquire(grpc::ServerContext* context, const v1::AcquireRequest* request,
                       v1::AcquireReply* reply) override {
    const SessionPtr session = SessionOf(*request);
    if (!session) return Unknown();
    std::vector<std::string_view> keys;
    const int count = request->keys().sizes_size();
    const bool ranged = request->offsets_size() > 0;
    if (!ReadKeys(request->keys(), &keys) || request->limits_size() != count ||
        (ranged && request->offsets_size() != count)) {
      return Malformed("acquire");
    }
    LeaseRequest wanted{keys, request->tenant(), {}, {}, session->domain(), 0};
    wanted.limits = {request->limits().data(), keys.size()};
    if (ranged) wanted.offsets = {request->offsets().data(), keys.size()};
    wanted.deadline_ms = NowMs() + parts_.store.config().request_timeout_ms;
    Lease lease;
    const auto placed = LeaseValues(parts_.store, parts_.scratch, wanted, &lease);
    bool held = false;
    for (const Result<Placed>& value : placed) {
      held |= AddPlaced(value, request->allow_inline(), reply);
    }
    if (!held || context->IsCancelled()) return grpc::Status::OK;
    lease.expires_ms = NowMs() + kLeaseMs + kLeaseGraceMs;
    reply->set_lease(session->Keep(std::move(lease)));
    if (reply->lease() == 0) {
      return Refuse(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many leases are out");
    }
    return grpc::Status::OK;
  }

  grpc::Status Exist(grpc::ServerContext*, const v1::KeysRequest* request,
                     v1::CodesReply* reply) override {
    std::vector<std::string_view> keys;
    if (!SessionOf(*request)) return Unknown();
    if (!ReadKeys(request->keys(), &keys)) return Malformed("exist");
    for (const auto& result : parts_.store.ExistMany(keys, request->tenant())) {
      if (result.ok()) {
        reply->add_codes(static_cast<int32_t>(*result));
      } else {
        AddError(result.error(), reply);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status Remove(grpc::ServerContext*, const v1::KeysRequest* request,
                      v1::CodesReply* reply) override {
    std::vector<std::string_view> keys;
    if (!SessionOf(*request)) return Unknown();
    if (!ReadKeys(request->keys(), &keys)) return Malformed("remove");
    for (const Status& status : parts_.store.RemoveMany(keys, request->tenant())) {
      if (status.ok()) {
        reply->add_codes(0);
      } else {
        AddError(status.error(), reply);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status Sizes(grpc::ServerContext*, const v1::KeysRequest* request,
                     v1::SizesReply* reply) override {
    std::vector<std::string_view> keys;
    if (!SessionOf(*request)) return Unknown();
    if (!ReadKeys(request->keys(), &keys)) return Malformed("sizes");
    for (std::string_view key : keys) {
      const Result<uint64_t> size = parts_.store.GetSize(key, request->tenant());
      reply->add_sizes(size.value_or(0));
      if (size.ok()) {
        reply->add_codes(0);
      } else {
        AddError(size.error(), reply);
      }
    }
    return grpc::Status::OK;
  }

  grpc::Status RemoveAll(grpc::ServerContext*, const v1::RemoveAllRequest* request,
                         v1::RemoveAllReply* reply) override {
    if (!SessionOf(*request)) return Unknown();
    const Result<uint64_t> removed = parts_.store.RemoveAll(request->tenant());
    if (removed.ok()) {
      reply->set_removed(*removed);
    } else {
      reply->set_code(static_cast<int32_t>(removed.code()));
      reply->set_error(removed.error().context);
    }
    return grpc::Status::OK;
  }

  grpc::Status Metrics(grpc::ServerContext*, const v1::MetricsRequest* request,
                       v1::MetricsReply* reply) override {
    if (!SessionOf(*request)) return Unknown();
    parts_.sessions.RefreshGauges();
    reply->set_text(parts_.store.MetricsText());
    return grpc::Status::OK;
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

  grpc::Status NoScopeLocked(const std::string& scope) const MC_REQUIRES(mu_) {
    std::string served;
    for (const auto& [name, domain] : parts_.scopes) {
      served.append(served.empty() ? "" : ", ").append(name);
    }
    return Refuse(grpc::StatusCode::NOT_FOUND,
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

  // The client gave up while its memory was read: what was published meanwhile may not be its
  // value. What another node got has a wrong checksum; here it goes altogether.
  void TakeBack(const std::vector<PutItem>& items, const std::vector<Status>& statuses,
                const std::string& tenant) {
    std::vector<std::string_view> keys;
    for (size_t i = 0; i < items.size(); ++i) {
      if (statuses[i].ok()) keys.push_back(items[i].key);
    }
    if (!keys.empty()) (void)parts_.store.RemoveMany(keys, tenant);
  }

  // True: the client needs the lease to read it.
  static bool AddPlaced(const Result<Placed>& value, bool allow_inline, v1::AcquireReply* reply) {
    if (!value.ok()) AddError(value.error(), reply);
    if (value.ok()) reply->add_codes(0);
    const Placed placed = value.ok() ? *value : Placed{};
    const bool fits = placed.size <= kInlineValueMax &&
                      reply->inline_bytes().size() + placed.size <= kInlineMessageMax;
    const bool inlined = placed.size == 0 || (allow_inline && fits);
    reply->add_sizes(placed.size);
    reply->add_areas(inlined ? 0 : placed.area);
    reply->add_offsets(inlined ? reply->inline_bytes().size() : placed.offset);
    reply->add_checksums(placed.checksum);
    reply->add_checked(placed.checked);
    if (inlined) reply->mutable_inline_bytes()->append(TextOf(placed.bytes));
    return !inlined;
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

#include "daemon/daemon.h"

#include <algorithm>

#include "base/hostport.h"
#include "client/open_store.h"
#include "obs/log.h"

namespace mooncake::daemon {

namespace {
constexpr uint64_t kScratchFirstMin = 64ULL << 20;
constexpr uint64_t kScratchMax = 2ULL << 30;
constexpr uint64_t kCallsLeaveMs = 2'000;
constexpr uint64_t kBindRetryMs = 100;
constexpr const char* kLegacyScope = "worker-1";
}  // namespace

std::map<std::string, uint32_t> ServedScopes(const DaemonConfig& config) {
  std::map<std::string, uint32_t> scopes;
  const auto add = [&](const std::string& scope) {
    if (!scope.empty()) scopes.try_emplace(scope, static_cast<uint32_t>(scopes.size()));
  };
  add(config.store.worker_scope);
  if (config.keyspace_given) add(config.store.keyspace);
  add(kLegacyScope);
  return scopes;
}

Result<std::unique_ptr<Daemon>> Daemon::Start(const DaemonConfig& config) {
  StoreConfig store_config = config.store;
  store_config.local_buffer_size = 0;  // That is the daemon's scratch, not a pool of leases.
  // Nobody is sent to a node that cannot serve its clients yet.
  const bool activate = store_config.initial_state == "active";
  MC_TRY(auto store, client::OpenLocalStore(
                         store_config, {.shared_segments = !config.client_server_address.empty(),
                                        .activated_later = activate}));
  auto daemon = std::make_unique<Daemon>(config, std::move(store));
  Status served = daemon->Serve();
  if (!served.ok() && (activate || served.code() != ErrorCode::kConflict)) {
    return std::move(served).error();
  }
  if (!served.ok()) {
    obs::LogInfo(served.error().context + "; waiting for it");
    daemon->await_ = daemon->store_->parts().runtime->Spawn(
        "mc-await", [raw = daemon.get()] { raw->AwaitAddress(); });
  }
  if (activate) MC_RETURN_IF_ERROR(daemon->store().SetState("active"));
  return daemon;
}

void Daemon::AwaitAddress() {
  while (!stop_.load()) {
    store_->parts().runtime->SleepMs(kBindRetryMs);
    if (stop_.load()) return;
    const Status served = Serve();
    if (served.ok()) {
      obs::LogInfo("client_server_address " + client_address() + " is free; serving");
      return;
    }
    obs::LogRateLimited(obs::LogLevel::kWarning, "daemon.bind", served.error().ToString());
  }
}

Daemon::Daemon(const DaemonConfig& config, std::unique_ptr<client::LocalStore> store)
    : config_(config),
      store_(std::move(store)),
      scratch_(std::max(config.store.local_buffer_size, kScratchFirstMin),
               std::max(config.store.local_buffer_size, kScratchMax)),
      sessions_(*store_->parts().runtime, *store_->parts().metrics),
      calls_(*store_, sessions_, scratch_) {}

Daemon::~Daemon() { Stop(); }

Status Daemon::Serve() {
  const std::string& address = config_.client_server_address;
  if (address.empty()) return Ok();
  MC_TRY(const base::HostPort parsed, base::ParseHostPort("client_server_address", address));
  if (!parsed.port) {
    return InvalidArgument("client_server_address \"" + address +
                           "\" has no port; allowed: host:port or [v6]:port");
  }
  ServiceParts parts{*store_, sessions_, calls_, ServedScopes(config_),
                     // One that was not told where its boundary is draws none.
                     config_.store.worker_scope.empty() && !config_.keyspace_given, "",
                     config_.store.cluster_secret};
  MC_TRY(auto server, StoreServer::Start(address, std::move(parts)));
  const std::string bound = base::JoinHostPort(parsed.host, server->port());
  auto side = std::make_unique<SideServer>(*store_->parts().runtime, sessions_, calls_,
                                           [this](uint64_t area) { return AreaOf(area); });
  const std::string scope = ServedScopes(config_).begin()->first;
  MC_RETURN_IF_ERROR(side->Start(config_.socket_folder, bound, scope));
  server->Open(side->path());
  base::MutexLock lock(mu_);
  client_address_ = bound;
  server_ = std::move(server);
  side_ = std::move(side);
  return Ok();
}

std::string Daemon::client_address() const {
  base::MutexLock lock(mu_);
  return client_address_;
}

std::string Daemon::socket_path() const {
  base::MutexLock lock(mu_);
  return side_ ? side_->path() : "";
}

std::shared_ptr<const MappedMemory> Daemon::AreaOf(uint64_t area) {
  // Neither the cache nor a segment goes before the sockets do.
  const auto forever = [](const MappedMemory* memory) {
    return std::shared_ptr<const MappedMemory>(std::shared_ptr<void>(), memory);
  };
  if (area == client::kHotCacheArea) {
    const client::HotReads* hot = store_->parts().hot.get();
    return hot == nullptr ? nullptr : forever(&hot->memory());
  }
  if (area >= client::kScratchAreas) return scratch_.Area(area);
  if (area < client::kSegmentAreas) return nullptr;
  const node::Core& core = store_->parts().node->core();
  return forever(core.extents.SegmentMemory(static_cast<uint32_t>(area - client::kSegmentAreas)));
}

void Daemon::StopServing() {
  stop_.store(true);
  if (await_) await_->Join();
  std::unique_ptr<StoreServer> server;
  std::unique_ptr<SideServer> side;
  {
    base::MutexLock lock(mu_);
    server.swap(server_);
    side.swap(side_);
  }
  if (server) server->Stop(kCallsLeaveMs);
  if (side) side->Stop();
}

void Daemon::Stop() {
  StopServing();
  store_->Close();
}

}  // namespace mooncake::daemon

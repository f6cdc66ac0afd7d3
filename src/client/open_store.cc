// The one place that knows the adapters: turns a configuration into a running store.
#include "client/open_store.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <fstream>

#include "base/hostport.h"
#include "base/lease_limits.h"
#include "base/segment_limits.h"
#include "base/url.h"
#include "client/config/config_parse.h"
#include "client/config/config_table.h"
#include "client/process_observability.h"
#include "metadata/etcd/etcd_metadata.h"
#include "metadata/memory/memory_metadata.h"
#include "metadata/metered_metadata.h"
#include "metadata/records.h"
#include "metadata/redis/redis_metadata.h"
#include "metadata/sqlite/sqlite_metadata.h"
#include "mooncake/store.h"
#include "obs/prometheus_metrics.h"
#include "runtime/real_runtime.h"
#include "transfer/tcp/tcp_transport.h"

namespace mooncake {

namespace {

std::atomic<bool (*)()> interrupt_check{nullptr};

// memory:// clusters live as long as the process.
metadata::MemoryRegistry& ProcessMemory() {
  static auto* const registry = std::make_unique<metadata::MemoryRegistry>().release();
  return *registry;
}

Result<std::unique_ptr<MetadataStore>> OpenMetadata(const StoreConfig& config, Runtime& runtime) {
  const std::string& url = config.metadata_url;
  if (url.starts_with("memory://")) {
    return metadata::MemoryMetadata::Open(url, config.keyspace, ProcessMemory(), runtime);
  }
  if (url.starts_with("sqlite://")) {
    return metadata::SqliteMetadata::Open(url, {.keyspace = config.keyspace}, runtime);
  }
  if (url.starts_with("redis://") || url.starts_with("rediss://")) {
    metadata::RedisOptions options;
    options.keyspace = config.keyspace;
    options.username = config.redis_username;
    options.password = config.redis_password;
    options.timeouts.connect_ms = config.redis_connect_timeout_ms;
    options.timeouts.io_ms = config.redis_io_timeout_ms;
    return metadata::RedisMetadata::Open(url, options, runtime);
  }
  if (url.starts_with("etcd://")) {
    metadata::EtcdOptions options;
    options.keyspace = config.keyspace;
    options.timeouts.connect_ms = config.redis_connect_timeout_ms;
    options.timeouts.io_ms = config.redis_io_timeout_ms;
    return metadata::EtcdMetadata::Open(url, options, runtime);
  }
  return InvalidArgument(fmt::format("metadata_url '{}': expected one of {}", base::RedactUrl(url),
                                     client_config::kMetadataUrlForms));
}

Status CheckSupported(const StoreConfig& config) {
  if (config.global_segment_size != 0 && config.global_segment_size < kSegmentSizeMin) {
    return InvalidArgument(fmt::format("global_segment_size is {}, allowed are 0 and at least {}",
                                       config.global_segment_size, kSegmentSizeMin));
  }
  if (config.lease_ttl_ms == 0 || config.lease_ttl_ms > kLeaseMsMax) {
    return InvalidArgument(fmt::format("lease_ttl_ms is {}, allowed are 1 to {} (seven days)",
                                       config.lease_ttl_ms, kLeaseMsMax));
  }
  if (config.protocol == "rdma") {
    return Unsupported("protocol 'rdma' is not supported yet; use tcp or auto");
  }
  if (config.transport_backend == "tent") {
    return Unsupported("transport_backend 'tent' is not supported yet; use classic_te");
  }
  if (config.route_control == "metadata_only") {
    return Unsupported("route_control 'metadata_only' is not supported yet; use embedded_wrh");
  }
  return Ok();
}

// The kernel's boot identity: the same for every process of a machine until it restarts.
std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id.empty() ? "unknown" : id;
}

std::string GeneratedStableId(Runtime& runtime) {
  return fmt::format("store-{}-{:016x}", getpid(), runtime.Random());
}

node::NodeConfig NodeConfigOf(const StoreConfig& config, Runtime& runtime, std::string host,
                              std::map<std::string, std::string> labels) {
  node::NodeConfig out;
  out.stable_id = config.stable_id.empty() ? GeneratedStableId(runtime) : config.stable_id;
  out.listen_host = std::move(host);
  out.listen_port = config.transport_rpc_port;
  out.host_id = HostId();
  out.pid = static_cast<uint64_t>(getpid());
  out.labels = std::move(labels);
  const char* has_storage = config.global_segment_size > 0 ? "true" : "false";
  out.labels.try_emplace("storage", has_storage);
  out.labels.try_emplace("route", has_storage);
  out.segment_name =
      config.local_segment_name.empty() ? out.stable_id + "-segment" : config.local_segment_name;
  out.segment_bytes = config.global_segment_size;
  out.hugepage_bytes =
      config.use_hugepage ? (config.hugepage_size != 0 ? config.hugepage_size : 2u << 20) : 0;
  out.startup_timeout_ms = config.startup_timeout_ms;

  out.membership.policy.route_topk = config.route_topk;
  out.membership.policy.route_control = config.route_control;
  out.membership.policy.slot_bits = config.slot_bits;
  out.membership.lease_ttl_ms = config.lease_ttl_ms;
  const bool usable =
      config.heartbeat_interval_ms > 0 && config.heartbeat_interval_ms < config.lease_ttl_ms;
  out.membership.heartbeat_interval_ms =
      usable ? config.heartbeat_interval_ms
             : std::min(std::max<uint64_t>(config.lease_ttl_ms / 3, 1), uint64_t{10'000});
  if (auto scope = config.labels.find("route_scope"); scope != config.labels.end()) {
    out.membership.route_scope = scope->second;
  }

  out.options.scope = {config.tenant, config.domain, config.object_set};
  if (auto pool = config.labels.find("pool"); pool != config.labels.end()) {
    out.options.pool = pool->second;
  }
  out.options.routed_writes = config.routed_writes;
  out.options.replica_count = config.replica_count;
  out.options.route_topk = config.route_topk;
  out.options.request_timeout_ms = config.request_timeout_ms;
  out.options.stall_timeout_ms = config.transfer_stall_timeout_ms;
  out.options.high_watermark_percent = config.eviction_high_watermark_percent;
  out.options.low_watermark_percent = config.eviction_low_watermark_percent;
  return out;
}

// What cannot be had, and the setting that asks for it.
Error AskedBy(std::string_view setting, uint64_t size, const Error& error) {
  Error named = error;
  named.context = fmt::format("{} is {}: {}", setting, size, error.context);
  return named;
}

// A metadata service that cannot be used, with the setting that names it.
Error OfMetadataUrl(const Error& error) {
  Error named = error;
  const bool said = error.context.find("metadata_url") != std::string::npos;
  if (error.code == ErrorCode::kMetadata && !said) named.context = "metadata_url: " + error.context;
  return named;
}

Status OpenPool(const StoreConfig& config, uint64_t hugepage_bytes, client::StoreParts& parts) {
  if (config.local_buffer_size == 0) return Ok();
  auto pool = client::LocalPool::Open(config.local_buffer_size, hugepage_bytes);
  if (!pool) return AskedBy("local_buffer_size", config.local_buffer_size, pool.error());
  parts.pool = *std::move(pool);
  return Ok();
}

Status OpenHotCache(const StoreConfig& config, client::StoreParts& parts) {
  if (config.local_hot_cache_size == 0) return Ok();
  auto hot = client::HotReads::Open(config, *parts.runtime, *parts.metrics);
  if (!hot) {
    return hot.code() == ErrorCode::kInvalidArgument
               ? hot.error()
               : AskedBy("local_hot_cache_size", config.local_hot_cache_size, hot.error());
  }
  parts.hot = *std::move(hot);
  return Ok();
}

}  // namespace

void SetInterruptCheck(bool (*check)()) { interrupt_check.store(check); }

bool client::InterruptWanted() {
  bool (*check)() = interrupt_check.load();
  return check != nullptr && check();
}

Result<std::unique_ptr<Store>> Store::Open(const StoreConfig& config) {
  MC_TRY(auto store, client::OpenLocalStore(config, {}));
  return std::unique_ptr<Store>(std::move(store));
}

Result<std::unique_ptr<client::LocalStore>> client::OpenLocalStore(
    const StoreConfig& config, const LocalStoreOptions& options) {
  MC_RETURN_IF_ERROR(CheckSupported(config));
  auto labels = config.labels;
  MC_RETURN_IF_ERROR(client_config::NormaliseLabels(&labels));
  const auto storage = labels.find("storage");
  if (config.global_segment_size == 0 && storage != labels.end() && storage->second == "true") {
    return client_config::NotAllowed("global_segment_size", "0",
                                     "more than 0, as the label storage is true");
  }
  MC_RETURN_IF_ERROR(TraceFrom(config));
  client::StoreParts parts;
  auto runtime = std::make_unique<runtime::RealRuntime>();
  runtime->SetInterruptCheck(InterruptWanted);
  parts.runtime = std::move(runtime);
  parts.metrics = std::make_unique<obs::PrometheusMetrics>(config.tenant);
  MC_TRY(const base::HostPort address,
         base::ParseHostPort("local_hostname", config.local_hostname));
  node::NodeConfig node_config =
      NodeConfigOf(config, *parts.runtime, address.host, std::move(labels));
  if (address.port) node_config.listen_port = *address.port;
  node_config.shared_segments = options.shared_segments;
  MC_TRY(node_config.initial_state, metadata::ParseNodeState(config.initial_state));
  node_config.succeeds = node_config.initial_state == NodeState::kStandby;
  if (options.activated_later) node_config.initial_state = NodeState::kStandby;
  auto metadata = OpenMetadata(config, *parts.runtime);
  if (!metadata) return OfMetadataUrl(metadata.error());
  parts.metadata = std::make_unique<metadata::MeteredMetadata>(
      *std::move(metadata), config.metadata_url.substr(0, config.metadata_url.find(':')),
      *parts.runtime, *parts.metrics);
  transfer::TcpOptions tcp;
  tcp.stall_ms = config.transfer_stall_timeout_ms;
  tcp.secret = config.cluster_secret;
  parts.transport =
      std::make_unique<transfer::TcpTransport>(*parts.runtime, tcp, parts.metrics.get());
  MC_RETURN_IF_ERROR(OpenPool(config, node_config.hugepage_bytes, parts));
  MC_RETURN_IF_ERROR(OpenHotCache(config, parts));
  auto node = node::Node::Start(
      node_config, {*parts.runtime, *parts.metadata, *parts.transport, *parts.metrics});
  if (!node) return OfMetadataUrl(node.error());
  parts.node = *std::move(node);
  auto store = std::make_unique<LocalStore>(config, std::move(parts));
  ServeMetricsFrom(config);
  return store;
}

}  // namespace mooncake

#include "client/config/config_table.h"

#include <algorithm>
#include <cstdlib>

#include "base/lease_limits.h"
#include "base/url.h"
#include "client/config/config_parse.h"
#include "obs/log.h"

namespace mooncake::client_config {
namespace {

// The field of a setting, wherever it is.
template <typename T>
T& At(StoreConfig& config, T StoreConfig::* field) {
  return config.*field;
}
template <typename T>
T& At(StoreConfig& config, T TraceConfig::* field) {
  return config.trace.*field;
}

template <auto kField>
Status Text(const Given& given, StoreConfig& config) {
  At(config, kField) = Trim(given.text);
  return Ok();
}

// Kept to the byte: a space may be part of a password.
template <auto kField>
Status Secret(const Given& given, StoreConfig& config) {
  At(config, kField) = given.text;
  return Ok();
}

template <auto kField>
Status Size(const Given& given, StoreConfig& config) {
  MC_TRY(At(config, kField), ParseSize(given.field, given.text));
  return Ok();
}

template <auto kField>
Status Bool(const Given& given, StoreConfig& config) {
  MC_TRY(At(config, kField), ParseBool(given.field, given.text));
  return Ok();
}

template <auto kField, uint64_t kMin, uint64_t kMax>
Status Integer(const Given& given, StoreConfig& config) {
  MC_TRY(const uint64_t value, ParseInteger(given.field, given.text, kMin, kMax));
  At(config, kField) = static_cast<std::remove_reference_t<decltype(At(config, kField))>>(value);
  return Ok();
}

// A day: longer limits are mistakes, and arithmetic on times cannot overflow.
constexpr uint64_t kMillisecondsMax = 24 * 3'600 * 1'000;

// The end of a process waits for an export.
constexpr uint64_t kOtlpTimeoutMax = 60'000;

template <auto kField, uint64_t kMin = 1, uint64_t kMax = kMillisecondsMax>
Status Milliseconds(const Given& given, StoreConfig& config) {
  return Integer<kField, kMin, kMax>(given, config);
}

constexpr uint64_t kReplicasMax = 64;

Status Replicas(const Given& given, StoreConfig& config) {
  MC_RETURN_IF_ERROR(Integer<&StoreConfig::replica_count, 0, kReplicasMax>(given, config));
  config.replica_count = std::max(config.replica_count, 1U);
  return Ok();
}

Status Protocol(const Given& given, StoreConfig& config) {
  MC_TRY(config.protocol, ParseChoice(given.field, given.text, "tcp rdma auto"));
  return Ok();
}

Status State(const Given& given, StoreConfig& config) {
  MC_TRY(config.initial_state,
         ParseChoice(given.field, given.text, "standby active draining sealed offline"));
  return Ok();
}

Status RouteControl(const Given& given, StoreConfig& config) {
  MC_TRY(config.route_control,
         ParseChoice(given.field, given.text, "embedded_wrh|wrh metadata_only|metadata"));
  return Ok();
}

Status Backend(const Given& given, StoreConfig& config) {
  MC_TRY(config.transport_backend,
         ParseChoice(given.field, given.text, "classic_te|classic|te tent"));
  return Ok();
}

Status LabelMap(const Given& given, StoreConfig& config) {
  MC_TRY(config.labels, ParseLabels(given.field, given.text));
  return Ok();
}

Status Hugepage(const Given& given, StoreConfig& config) {
  MC_TRY(config.hugepage_size, ParseHugepageSize(given.field, given.text));
  return Ok();
}

// Off when it is negative, as callers write it.
Status HotCacheSize(const Given& given, StoreConfig& config) {
  if (Trim(given.text).starts_with('-')) {
    config.local_hot_cache_size = 0;
    return Ok();
  }
  return Size<&StoreConfig::local_hot_cache_size>(given, config);
}

constexpr std::string_view kSlotBitsAllowed = "0, or 16 to 21";

Status SlotBits(const Given& given, StoreConfig& config) {
  const auto bits = ParseInteger(given.field, given.text, 0, 21);
  if (!bits || (*bits != 0 && *bits < 16)) {
    return NotAllowed(given.field, given.text, kSlotBitsAllowed);
  }
  config.slot_bits = static_cast<uint32_t>(*bits);
  return Ok();
}

Status SecretFile(const Given& given, StoreConfig& config) {
  if (!config.cluster_secret.empty()) return Ok();
  MC_TRY(config.cluster_secret, ReadSecret(given.field, given.text, "secret"));
  return Ok();
}

// As tracing_subscriber has them: a level, a target, or target=level.
Status Filter(const Given& given, StoreConfig& config) {
  constexpr std::string_view kLevels[] = {"trace",   "debug", "info", "warn",
                                          "warning", "error", "off"};
  for (std::string_view directive : Split(given.text, ',')) {
    const size_t equals = directive.rfind('=');
    if (equals == std::string_view::npos) continue;
    const std::string level = Lower(Trim(directive.substr(equals + 1)));
    if (std::find(std::begin(kLevels), std::end(kLevels), level) != std::end(kLevels)) continue;
    return NotAllowed(given.field, given.text,
                      "trace, debug, info, warn, error, off; also target=level, commas between");
  }
  config.trace.filter = Trim(given.text);
  return Ok();
}

Status KeyMode(const Given& given, StoreConfig& config) {
  MC_TRY(config.trace.key_mode, ParseChoice(given.field, given.text, "hash full"));
  return Ok();
}

Status SpanEvents(const Given& given, StoreConfig& config) {
  MC_TRY(const std::string chosen, ParseChoice(given.field, given.text, "close none|off|false|0"));
  config.trace.span_events = chosen == "close";
  return Ok();
}

// Standard variables belong to other programs of the process too: what is wrong in them is no
// reason not to start.
Status Lenient(const Given& given, Status status) {
  if (status.ok() || !given.field.starts_with("OTEL_")) return status;
  obs::LogWarning(status.error().context + "; the default is used");
  return Ok();
}

// Who names our own setting wants the export; the standard variables alone say only where to.
Status OtlpEndpoint(const Given& given, StoreConfig& config) {
  std::string url(Trim(given.text));
  const bool own = !given.field.starts_with("OTEL_");
  if (own) config.trace.otlp_trace = true;
  const size_t host = url.find("://");
  const bool has_path = host != std::string::npos && url.find('/', host + 3) != std::string::npos;
  while (url.ends_with('/')) url.pop_back();
  const bool is_base = given.field == "OTEL_EXPORTER_OTLP_ENDPOINT";
  if (is_base || !has_path) url += "/v1/traces";
  if (url.starts_with("http://") || url.starts_with("https://")) {
    config.trace.otlp_endpoint = url;
    return Ok();
  }
  return Lenient(given, NotAllowed(given.field, base::RedactUrl(given.text),
                                   "http://HOST:PORT[/PATH] or https://HOST:PORT[/PATH]"));
}

Status OtlpRatio(const Given& given, StoreConfig& config) {
  const std::string text(Trim(given.text));
  char* end = nullptr;
  const double ratio = std::strtod(text.c_str(), &end);
  if (end == text.c_str() + text.size() && ratio >= 0 && ratio <= 1) {
    config.trace.otlp_sample_ratio = ratio;
    return Ok();
  }
  return Lenient(given, NotAllowed(given.field, text, "a ratio of 0 to 1"));
}

Status OtlpTimeout(const Given& given, StoreConfig& config) {
  const auto limit = ParseInteger(given.field, given.text, 1, kOtlpTimeoutMax);
  if (!limit) return Lenient(given, limit.error());
  config.trace.otlp_timeout_ms = *limit;
  return Ok();
}

// k=v pairs with commas between; the values are percent-encoded.
template <auto kField>
Status OtlpPairs(const Given& given, StoreConfig& config) {
  for (std::string_view pair : Split(given.text, ',')) {
    const size_t equals = pair.find('=');
    const auto value = equals == std::string_view::npos
                           ? std::nullopt
                           : base::PercentDecode(Trim(pair.substr(equals + 1)));
    if (!value || Trim(pair.substr(0, equals)).empty()) {
      return Lenient(given, NotAllowed(given.field, "...", "NAME=VALUE, commas between"));
    }
    At(config, kField)[std::string(Trim(pair.substr(0, equals)))] = *value;
  }
  return Ok();
}

Status AdminTokenFile(const Given& given, StoreConfig& config) {
  if (!config.trace.admin_token.empty()) return Ok();
  MC_TRY(config.trace.admin_token, ReadSecret(given.field, given.text, "token"));
  return Ok();
}

using C = StoreConfig;
using T = TraceConfig;
#define MC_ENV "MC_STORE_RS_"
constexpr std::string_view kCountAllowed = "0 to 64; 0 means 1";
constexpr std::string_view kTimeAllowed = "1 to 86400000";
constexpr std::string_view kSizeAllowed = "NUMBER[unit], unit B, K, M, G or T (KB, KiB, ...)";

constexpr Setting kSettings[] = {
    {"local_hostname", "", "MOONCAKE_LOCAL_HOSTNAME", "text", "", "host, host:port or [v6]:port",
     "Where other nodes reach this one; a port here is the same as transport_rpc_port. Required.",
     Text<&C::local_hostname>},
    {"transport_metadata_url", "metadata_server", MC_ENV "TRANSPORT_METADATA_URL", "URL",
     "P2PHANDSHAKE", "P2PHANDSHAKE or redis://...",
     "Where transport endpoints are kept: in the leases, or also in Redis.",
     Text<&C::transport_metadata_url>},
    {"metadata_url", "master_server master_server_addr master_server_address",
     MC_ENV "METADATA_URL", "URL", "", kMetadataUrlForms,
     "The metadata service of the cluster. Required.", Text<&C::metadata_url>},
    {"global_segment_size", "storage_bytes", MC_ENV "STORAGE_BYTES", "size", "0",
     "0, or at least 4096",
     "Storage offered to the cluster; 0 offers none. setup(dict) takes 16 MiB when it is absent.",
     Size<&C::global_segment_size>},
    {"local_buffer_size", "scratch_bytes", MC_ENV "SCRATCH_BYTES", "size", "0", kSizeAllowed,
     "The registered pool behind BufferPool; 0 makes none. setup(dict) takes 16 MiB when it is "
     "absent.",
     Size<&C::local_buffer_size>},
    {"protocol", "", "MOONCAKE_PROTOCOL", "choice", "tcp", "tcp, rdma, auto",
     "How values travel between hosts.", Protocol},
    {"device_name", "rdma_devices", MC_ENV "RDMA_DEVICES", "text", "", "names, commas between",
     "The RDMA devices to use; none given: all that are up.", Text<&C::device_name>},
    {"stable_id", "", MC_ENV "STABLE_ID", "text", "", "any text",
     "The node's name across restarts. Absent: made up, unique per process and call.",
     Text<&C::stable_id>},
    {"initial_state", "state", MC_ENV "INITIAL_STATE", "choice", "active",
     "standby, active, draining, sealed, offline", "The state in which the node joins.", State},
    {"keyspace", "", MC_ENV "KEYSPACE", "text", "mc/store-rs/v2", "any text",
     "Clusters with different keyspaces share a metadata service without seeing each other.",
     Text<&C::keyspace>},
    {"worker_scope", "", MC_ENV "WORKER_SCOPE", "text", "", "any text",
     "The scope of the local hot cache and of dummy clients. Absent: the keyspace.",
     Text<&C::worker_scope>},
    {"tenant", "tenant_id", MC_ENV "TENANT", "text", "default", "any text",
     "The tenant of calls that name none.", Text<&C::tenant>},
    {"domain", "", MC_ENV "DOMAIN", "text", "default", "any text",
     "The second part of the namespace of all keys.", Text<&C::domain>},
    {"object_set", "", MC_ENV "OBJECT_SET", "text", "default", "any text",
     "The third part of the namespace of all keys.", Text<&C::object_set>},
    {"labels", "label", MC_ENV "LABELS", "map", "",
     "k=v pairs with commas between, or a JSON object",
     "Labels of the node: pool, host (what fails together; absent: the machine), route_scope, "
     "route_weight (of how many keys it keeps the routes, as against other nodes; 1/1024 to 1024, "
     "absent: 1), and storage and route, which are true exactly when storage is offered. "
     "storage=false offers none, whatever global_segment_size says.",
     LabelMap},
    {"routed_writes", "", MC_ENV "ROUTED_WRITES", "boolean", "false", "true, false",
     "Whether values may be placed on other nodes. Needed without own storage.",
     Bool<&C::routed_writes>},
    {"replica_count", "", MC_ENV "REPLICA_COUNT", "integer", "1", kCountAllowed,
     "Copies of each value of a put without a ReplicateConfig.", Replicas},
    {"route_topk", "", MC_ENV "ROUTE_TOPK", "integer", "2", "2 to 64",
     "Nodes that hold the route of a key.", Integer<&C::route_topk, 2, kReplicasMax>},
    {"route_control", "", MC_ENV "ROUTE_CONTROL", "choice", "embedded_wrh",
     "embedded_wrh, metadata_only", "Where routes are kept: on the nodes or in the metadata.",
     RouteControl},
    {"slot_bits", "", MC_ENV "SLOT_BITS", "integer", "0", kSlotBitsAllowed,
     "The cluster divides the keys into 2^slot_bits slots, for as long as it lives; the node that "
     "founds it decides. 0: what the cluster has, and 16 for a new one. More for more than 60 "
     "nodes: see scale.md.",
     SlotBits},
    {"transport_rpc_port", "rpc_server_port", MC_ENV "TRANSPORT_RPC_PORT", "port", "0",
     "0 to 65535", "The node port; 0 takes any free one.",
     Integer<&C::transport_rpc_port, 0, UINT16_MAX>},
    {"transport_backend", "", MC_ENV "TRANSPORT_BACKEND", "choice", "classic_te",
     "classic_te, tent", "One path to each peer, or several.", Backend},
    {"local_segment_name", "", MC_ENV "LOCAL_SEGMENT_NAME", "text", "", "any text",
     "The name of the own segment. Absent: <stable_id>-segment.", Text<&C::local_segment_name>},
    {"lease_ttl_ms", "", MC_ENV "LEASE_TTL_MS", "milliseconds", "30000", "1 to 604800000",
     "How long the node is believed alive after its last heartbeat.",
     Milliseconds<&C::lease_ttl_ms, 1, kLeaseMsMax>},
    {"heartbeat_interval_ms", "", MC_ENV "HEARTBEAT_INTERVAL_MS", "milliseconds", "0",
     "0 to 86400000",
     "Between heartbeats. 0, or not below the lease: a third of the lease, at most 30000.",
     Milliseconds<&C::heartbeat_interval_ms, 0>},
    {"request_timeout_ms", "", MC_ENV "REQUEST_TIMEOUT_MS", "milliseconds", "65000", kTimeAllowed,
     "The limit of every call.", Milliseconds<&C::request_timeout_ms>},
    {"startup_timeout_ms", "", MC_ENV "STARTUP_TIMEOUT_MS", "milliseconds", "20000", kTimeAllowed,
     "How long setup waits for the metadata service. For the lease of a silent process with its "
     "stable_id it waits one lease_ttl_ms, if that is longer.",
     Milliseconds<&C::startup_timeout_ms>},
    {"heartbeat_timeout_ms", "", MC_ENV "HEARTBEAT_TIMEOUT_MS", "milliseconds", "15000",
     kTimeAllowed, "The limit of one heartbeat.", Milliseconds<&C::heartbeat_timeout_ms>},
    {"transfer_stall_timeout_ms", "transfer_timeout_ms",
     MC_ENV "TRANSFER_STALL_TIMEOUT_MS " MC_ENV "TRANSFER_TIMEOUT_MS", "milliseconds", "10000",
     kTimeAllowed, "How long a silent peer is waited for before it is avoided.",
     Milliseconds<&C::transfer_stall_timeout_ms>},
    {"use_hugepage", "", "MC_STORE_USE_HUGEPAGE", "boolean", "false", "true, false",
     "Storage and pool on huge pages, which must be reserved. True when hugepage_size is given.",
     Bool<&C::use_hugepage>},
    {"hugepage_size", "", "MC_STORE_HUGEPAGE_SIZE", "size", "", "2MB, 1GB",
     "The page size. Absent: 2 MiB when use_hugepage is true.", Hugepage},
    {"eviction_high_watermark_percent", "", MC_ENV "EVICTION_HIGH_WATERMARK_PERCENT", "percent",
     "90", "1 to 100", "Above this share of used storage, values are evicted in the background.",
     Integer<&C::eviction_high_watermark_percent, 1, 100>},
    {"eviction_low_watermark_percent", "", MC_ENV "EVICTION_LOW_WATERMARK_PERCENT", "percent", "80",
     "0 to 99, below the high watermark", "Where background eviction stops.",
     Integer<&C::eviction_low_watermark_percent, 0, 99>},
    {"local_hot_cache_size", "", "MC_STORE_LOCAL_HOT_CACHE_SIZE", "size", "0",
     "0, or at least local_hot_block_size",
     "Memory for copies of remote values, so that reading them again moves no bytes. 0: none.",
     HotCacheSize},
    {"local_hot_block_size", "", "MC_STORE_LOCAL_HOT_BLOCK_SIZE", "size", "16MB", kSizeAllowed,
     "The largest value that the local hot cache keeps.", Size<&C::local_hot_block_size>},
    {"local_hot_cache_use_shm", "", "MC_STORE_LOCAL_HOT_CACHE_USE_SHM", "boolean", "false",
     "true, false", "Of a daemon: whether its dummy clients read the hot cache in place.",
     Bool<&C::local_hot_cache_use_shm>},
    {"local_hot_cache_validate", "", "MC_STORE_LOCAL_HOT_CACHE_VALIDATE", "boolean", "true",
     "true, false",
     "Whether the key's authority is asked for the current version before a copy is used.",
     Bool<&C::local_hot_cache_validate>},
    {"local_hot_cache_max_age_ms", "", "MC_STORE_LOCAL_HOT_CACHE_MAX_AGE_MS", "milliseconds",
     "1000", kTimeAllowed, "Without validation: how long a copy is trusted.",
     Milliseconds<&C::local_hot_cache_max_age_ms>},
    {"cluster_secret", "", MC_ENV "CLUSTER_SECRET", "secret", "", "any text",
     "Nodes prove to each other that they know it; setup fails where those that answer have "
     "another. Absent: they do not ask.",
     Secret<&C::cluster_secret>},
    {"cluster_secret_file", "", MC_ENV "CLUSTER_SECRET_FILE", "path", "", "a readable file",
     "A file that holds the cluster_secret; not read when that is given.", SecretFile},
    {"redis_username", "", "MC_REDIS_USERNAME", "text", "", "any text",
     "The Redis user where the URL names none.", Secret<&C::redis_username>},
    {"redis_password", "", "MC_REDIS_PASSWORD", "secret", "", "any text",
     "The Redis password where the URL names none.", Secret<&C::redis_password>},
    {"redis_connect_timeout_ms", "", MC_ENV "REDIS_CONNECT_TIMEOUT_MS", "milliseconds", "3000",
     kTimeAllowed, "The limit of one connection attempt to Redis or etcd.",
     Milliseconds<&C::redis_connect_timeout_ms>},
    {"redis_io_timeout_ms", "", MC_ENV "REDIS_IO_TIMEOUT_MS", "milliseconds", "3000", kTimeAllowed,
     "The limit of one command of Redis or request to etcd.",
     Milliseconds<&C::redis_io_timeout_ms>},
    {"metrics_addr", "", MC_ENV "METRICS_ADDR", "text", "", "host:port; port 0 takes any free one",
     "Where the process serves its metrics over HTTP. Absent: nowhere.", Text<&C::metrics_addr>},
    {"enable_client_http_server", "", "", "boolean", "false", "true, false",
     "Whether to serve the metrics on the loopback, when metrics_addr is absent. True when "
     "client_http_port is given.",
     Bool<&C::enable_client_http_server>},
    {"client_http_port", "", "", "port", "0", "0 to 65535",
     "The port of that; 0 takes any free one.", Integer<&C::client_http_port, 0, UINT16_MAX>},
    {"trace", "", MC_ENV "TRACE", "boolean", "false", "true, false",
     "Whether to log at the level of trace_filter. True when trace_file is given.",
     Bool<&T::enabled>},
    {"trace_file", "", MC_ENV "TRACE_FILE", "path", "", "the path of a file",
     "The log is appended there instead of going to stderr.", Text<&T::file>},
    {"trace_filter", "", MC_ENV "TRACE_FILTER", "text", "info",
     "trace, debug, info, warn, error, off; also target=level, commas between",
     "What is logged: the most talkative level that is named counts.", Filter},
    {"trace_jsonl_file", "", MC_ENV "TRACE_JSONL_FILE", "path", "", "the path of a file",
     "A line of JSON is appended there for each call.", Text<&T::jsonl_file>},
    {"trace_item_metadata", "", MC_ENV "TRACE_ITEM_METADATA", "boolean", "false", "true, false",
     "Whether the items of batches from and into buffers are traced too.", Bool<&T::item_metadata>},
    {"trace_key_mode", "", MC_ENV "TRACE_KEY_MODE", "choice", "hash", "hash, full",
     "Whether traced items show their whole keys.", KeyMode},
    {"trace_span_events", "", MC_ENV "TRACE_SPAN_EVENTS", "choice", "none", "close, none",
     "Whether each call and each part of one is a line of the log when it ends.", SpanEvents},
    {"trace_dir", "", MC_ENV "TRACE_DIR", "path", "", "the path of a folder",
     "The metrics server's /tracing?file= may write under it only. Absent: anywhere.",
     Text<&T::dir>},
    {"admin_token", "", "MC_STORE_ADMIN_TOKEN", "secret", "", "any text",
     "Lets other hosts use /tracing?file=. Absent: nobody may from there.",
     Secret<&T::admin_token>},
    {"admin_token_file", "", "MC_STORE_ADMIN_TOKEN_FILE", "path", "", "a readable file",
     "A file that holds the admin_token; not read when that is given.", AdminTokenFile},
    {"otlp_endpoint", "",
     MC_ENV "OTLP_ENDPOINT OTEL_EXPORTER_OTLP_TRACES_ENDPOINT OTEL_EXPORTER_OTLP_ENDPOINT", "url",
     "", "http://HOST:PORT[/PATH] or https://HOST:PORT[/PATH]",
     "Spans are exported there, as OTLP in JSON. Without a path, and to the base URL of the last "
     "variable, /v1/traces is added. The OTEL variables alone start nothing.",
     OtlpEndpoint},
    {"otlp_trace", "", MC_ENV "OTLP_TRACE", "boolean", "false", "true, false",
     "Whether spans are exported; to http://localhost:4318/v1/traces when no endpoint is known. "
     "True "
     "when otlp_endpoint is given, other than by the OTEL variables.",
     Bool<&T::otlp_trace>},
    {"otlp_service_name", "", MC_ENV "OTLP_SERVICE_NAME OTEL_SERVICE_NAME", "text",
     "mooncake-store", "any text", "The service.name of exported spans.",
     Text<&T::otlp_service_name>},
    {"otlp_service_instance_id", "", MC_ENV "OTLP_SERVICE_INSTANCE_ID", "text", "", "any text",
     "Their service.instance.id. Absent: made from the process id.",
     Text<&T::otlp_service_instance_id>},
    {"otlp_resource", "", "OTEL_RESOURCE_ATTRIBUTES", "pairs", "", "NAME=VALUE, commas between",
     "Further attributes of the process that exports.", OtlpPairs<&T::otlp_resource>},
    {"otlp_headers", "", "OTEL_EXPORTER_OTLP_TRACES_HEADERS OTEL_EXPORTER_OTLP_HEADERS", "secret",
     "", "NAME=VALUE, commas between", "Headers of each export.", OtlpPairs<&T::otlp_headers>},
    {"otlp_timeout_ms", "",
     MC_ENV "OTLP_TIMEOUT_MS OTEL_EXPORTER_OTLP_TRACES_TIMEOUT OTEL_EXPORTER_OTLP_TIMEOUT",
     "milliseconds", "3000", "1 to 60000", "The limit of connecting, sending and answering, each.",
     OtlpTimeout},
    {"otlp_sample_ratio", "", MC_ENV "OTLP_SAMPLE_RATIO OTEL_TRACES_SAMPLER_ARG", "number", "1",
     "0 to 1", "How many of the calls are traced, wherever their spans go.", OtlpRatio},
};
#undef MC_ENV

}  // namespace

std::span<const Setting> Settings() { return kSettings; }

const Setting* FindSetting(std::string_view name) {
  for (const Setting& setting : kSettings) {
    if (setting.name == name) return &setting;
    const std::vector<std::string_view> aliases = Split(setting.aliases, ' ');
    if (std::find(aliases.begin(), aliases.end(), name) != aliases.end()) return &setting;
  }
  return nullptr;
}

std::string FlagOf(std::string_view name) {
  std::string flag = "--";
  flag.append(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

}  // namespace mooncake::client_config

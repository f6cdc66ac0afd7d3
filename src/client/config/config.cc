#include "mooncake/config.h"

#include <algorithm>

#include "base/hostport.h"
#include "base/segment_limits.h"
#include "base/text.h"
#include "base/url.h"
#include "client/config/config_parse.h"
#include "client/config/config_table.h"
#include "mooncake/observability.h"

namespace mooncake {
namespace {

using client_config::FindSetting;
using client_config::Given;
using client_config::NotAllowed;
using client_config::Setting;
using client_config::Settings;
using client_config::Split;
using Texts = std::map<std::string, std::string>;

// Where the value of one setting comes from, and whether it was given at all.
class Source {
 public:
  Source(const Texts& values, const Texts& environment)
      : values_(values), environment_(environment) {}

  // The value under the setting's own name, then under its aliases, then the environment's.
  // An empty text counts as absent.
  std::optional<Given> Find(const Setting& setting) const {
    if (auto own = Lookup(values_, setting.name)) return own;
    for (std::string_view alias : Split(setting.aliases, ' ')) {
      if (auto found = Lookup(values_, alias)) return found;
    }
    for (std::string_view variable : Split(setting.environment, ' ')) {
      if (auto found = Lookup(environment_, variable)) return found;
    }
    return std::nullopt;
  }

  bool Has(std::string_view name) const { return Find(*FindSetting(name)).has_value(); }

  // What the user called the setting, for messages.
  std::string FieldOf(std::string_view name) const {
    const std::optional<Given> given = Find(*FindSetting(name));
    return std::string(given ? given->field : name);
  }

 private:
  static std::optional<Given> Lookup(const Texts& texts, std::string_view name) {
    const auto found = texts.find(std::string(name));
    if (found == texts.end() || client_config::Trim(found->second).empty()) return std::nullopt;
    return Given{found->first, found->second};
  }

  const Texts& values_;
  const Texts& environment_;
};

Status CheckNames(const Texts& values) {
  for (const auto& [name, text] : values) {
    if (FindSetting(name) != nullptr) continue;
    const std::string nearest = NearestConfigName(name);
    std::string message = "there is no setting \"" + name + "\"";
    if (!nearest.empty()) message += "; did you mean \"" + nearest + "\"?";
    return InvalidArgument(message);
  }
  return Ok();
}

Error Required(std::string_view field, std::string_view allowed) {
  std::string message(field);
  message.append(" is required; allowed: ").append(allowed);
  return InvalidArgument(std::move(message));
}

Status CheckMetadataUrl(const Source& source, const StoreConfig& config) {
  const std::string field = source.FieldOf("metadata_url");
  if (config.metadata_url.empty()) {
    return Required(field, client_config::kMetadataUrlForms);
  }
  const Error refused =
      NotAllowed(field, base::RedactUrl(config.metadata_url), client_config::kMetadataUrlForms);
  const Result<base::Url> url = base::ParseUrl(field, config.metadata_url);
  if (!url) return refused;
  if (url->scheme == "sqlite") {
    const bool has_path = url->host.empty() && url->path.size() > 1 && url->path.front() == '/';
    return has_path ? Ok() : Status(refused);
  }
  for (std::string_view scheme : {"memory", "redis", "rediss", "etcd"}) {
    if (url->scheme == scheme) return url->host.empty() ? Status(refused) : Ok();
  }
  return refused;
}

Status CheckTransportMetadataUrl(const Source& source, StoreConfig& config) {
  const std::string field = source.FieldOf("transport_metadata_url");
  std::string& text = config.transport_metadata_url;
  if (client_config::Lower(text) == "p2phandshake") {
    text = "P2PHANDSHAKE";
    return Ok();
  }
  const Result<base::Url> url = base::ParseUrl(field, text);
  if (url && (url->scheme == "redis" || url->scheme == "rediss")) return Ok();
  return NotAllowed(field, base::RedactUrl(text), "P2PHANDSHAKE or redis://host:port/db");
}

// Peers are told these in every call, and take nothing else.
Status CheckScope(const Source& source, const StoreConfig& config) {
  for (const auto& [name, text] :
       {std::pair("tenant", &config.tenant), std::pair("domain", &config.domain),
        std::pair("object_set", &config.object_set)}) {
    if (!base::IsUtf8(*text)) return InvalidArgument(source.FieldOf(name) + ": expected UTF-8");
  }
  return Ok();
}

// A port in local_hostname is the node port.
Status ResolveAddress(const Source& source, StoreConfig& config) {
  constexpr std::string_view kAllowed = "host, host:port or [v6]:port";
  const std::string field = source.FieldOf("local_hostname");
  if (config.local_hostname.empty()) {
    return Required(field, kAllowed);
  }
  const Result<base::HostPort> address = base::ParseHostPort(field, config.local_hostname);
  if (!address || address->host.empty()) {
    return NotAllowed(field, config.local_hostname, kAllowed);
  }
  if (address->port && config.transport_rpc_port != 0 &&
      *address->port != config.transport_rpc_port) {
    return NotAllowed(source.FieldOf("transport_rpc_port"),
                      std::to_string(config.transport_rpc_port),
                      "the port of " + field + ", which is \"" + config.local_hostname + "\"");
  }
  if (address->port) config.transport_rpc_port = *address->port;
  config.local_hostname = address->host;
  return Ok();
}

// Fills in the labels that follow from other settings; refuses a node that cannot do its work.
Status ResolveStorage(const Source& source, StoreConfig& config) {
  const bool offers = config.global_segment_size > 0;
  config.labels.try_emplace("storage", offers ? "true" : "false");
  config.labels.try_emplace("route", offers ? "true" : "false");
  MC_RETURN_IF_ERROR(client_config::NormaliseLabels(&config.labels));
  const bool storage = config.labels.at("storage") == "true";
  if (storage && !offers) {
    return NotAllowed("global_segment_size", "0", "more than 0, as the label storage is true");
  }
  if (!storage) config.global_segment_size = 0;  // Not offered, so not needed.
  if (storage && config.global_segment_size < kSegmentSizeMin) {
    return NotAllowed(source.FieldOf("global_segment_size"),
                      std::to_string(config.global_segment_size),
                      "0, or at least " + std::to_string(kSegmentSizeMin) + " bytes");
  }
  if (!storage && !config.routed_writes) {
    return NotAllowed("routed_writes", "false",
                      "true for a node without storage (global_segment_size 0, or the label "
                      "storage=false), which could not place a value anywhere");
  }
  return Ok();
}

Status CheckWatermarks(const Source& source, const StoreConfig& config) {
  if (config.eviction_low_watermark_percent < config.eviction_high_watermark_percent) return Ok();
  return NotAllowed(source.FieldOf("eviction_low_watermark_percent"),
                    std::to_string(config.eviction_low_watermark_percent),
                    "less than eviction_high_watermark_percent, which is " +
                        std::to_string(config.eviction_high_watermark_percent));
}

Status CheckHotCache(const Source& source, const StoreConfig& config) {
  if (config.local_hot_block_size == 0) {
    return NotAllowed(source.FieldOf("local_hot_block_size"), "0", "at least 1 byte");
  }
  if (config.local_hot_cache_size == 0 ||
      config.local_hot_cache_size >= config.local_hot_block_size) {
    return Ok();
  }
  return NotAllowed(source.FieldOf("local_hot_cache_size"),
                    std::to_string(config.local_hot_cache_size),
                    "0, or at least one block of " + source.FieldOf("local_hot_block_size") +
                        ", which is " + std::to_string(config.local_hot_block_size));
}

void ResolveHugepages(const Source& source, StoreConfig& config) {
  constexpr uint64_t kHugepageDefault = uint64_t{2} << 20;
  if (config.hugepage_size > 0 && !source.Has("use_hugepage")) config.use_hugepage = true;
  if (!config.use_hugepage) config.hugepage_size = 0;
  if (config.use_hugepage && config.hugepage_size == 0) config.hugepage_size = kHugepageDefault;
}

void ResolveHeartbeat(StoreConfig& config) {
  constexpr uint64_t kIntervalMax = 30'000;
  if (config.heartbeat_interval_ms >= config.lease_ttl_ms) config.heartbeat_interval_ms = 0;
  if (config.heartbeat_interval_ms == 0) {
    config.heartbeat_interval_ms = std::clamp<uint64_t>(config.lease_ttl_ms / 3, 1, kIntervalMax);
  }
}

Status CheckMetricsAddress(const Source& source, const StoreConfig& config) {
  if (config.metrics_addr.empty()) return Ok();
  const std::string field = source.FieldOf("metrics_addr");
  const Result<base::HostPort> address = base::ParseHostPort(field, config.metrics_addr);
  if (address && address->port) return Ok();
  return NotAllowed(field, config.metrics_addr, "host:port");
}

}  // namespace

Result<TraceConfig> TraceConfigFromEnvironment(const Texts& environment) {
  const Texts none;
  const Source source(none, environment);
  StoreConfig config;
  for (const Setting& setting : Settings()) {
    const bool traces = setting.name.starts_with("trace") || setting.name.starts_with("otlp_") ||
                        setting.name.starts_with("admin_");
    const std::optional<Given> given = traces ? source.Find(setting) : std::nullopt;
    if (given) MC_RETURN_IF_ERROR(setting.apply(*given, config));
  }
  return config.trace;
}

Result<StoreConfig> ConfigFromValues(const Texts& values, const Texts& environment) {
  MC_RETURN_IF_ERROR(CheckNames(values));
  MC_RETURN_IF_ERROR(client_config::CheckNoTls(environment));
  MC_RETURN_IF_ERROR(client_config::CheckEnvironment(environment));
  const Source source(values, environment);
  StoreConfig config;
  for (const Setting& setting : Settings()) {
    if (const std::optional<Given> given = source.Find(setting)) {
      MC_RETURN_IF_ERROR(setting.apply(*given, config));
    }
  }
  MC_RETURN_IF_ERROR(CheckMetadataUrl(source, config));
  MC_RETURN_IF_ERROR(CheckTransportMetadataUrl(source, config));
  MC_RETURN_IF_ERROR(CheckScope(source, config));
  MC_RETURN_IF_ERROR(ResolveAddress(source, config));
  MC_RETURN_IF_ERROR(ResolveStorage(source, config));
  MC_RETURN_IF_ERROR(CheckWatermarks(source, config));
  MC_RETURN_IF_ERROR(CheckHotCache(source, config));
  MC_RETURN_IF_ERROR(CheckMetricsAddress(source, config));
  // Whoever names a port wants something to listen there.
  if (config.client_http_port != 0 && !source.Has("enable_client_http_server")) {
    config.enable_client_http_server = true;
  }
  ResolveHugepages(source, config);
  ResolveHeartbeat(config);
  return config;
}

}  // namespace mooncake

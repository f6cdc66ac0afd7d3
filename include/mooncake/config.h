// StoreConfig: everything that opening a store can be told. Field names are those of the
// Python setup() call and of the daemon's flags; docs/configuration.md lists names, aliases,
// environment variables and defaults, generated from the same table in the code.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "mooncake/result.h"

namespace mooncake {

// The trace of a process, and the log that goes with it.
struct TraceConfig {
  bool enabled = false;        // The log at the level of `filter`; implied by `file`.
  std::string file;            // The log goes there instead of to stderr.
  std::string filter;          // trace, debug, info, warn, error or off, also "target=level,...".
  std::string jsonl_file;      // One line of JSON for each call.
  bool item_metadata = false;  // Also one for the items of each batch of buffers.
  std::string key_mode = "hash";  // hash | full: whether keys are written out.
  bool span_events = false;       // A line of the log for each span, when it ends.
  std::string dir;                // /tracing?file= may write under it only. Empty: anywhere.
  std::string admin_token;        // Lets /tracing?file= be used from other hosts.

  // Export of spans to a collector, as OTLP in JSON over HTTP.
  bool otlp_trace = false;    // Starts it; at http://localhost:4318/v1/traces, if none is given.
  std::string otlp_endpoint;  // http:// or https://, with the path.
  std::string otlp_service_name = "mooncake-store";
  std::string otlp_service_instance_id;              // Empty: made from the process id.
  std::map<std::string, std::string> otlp_headers;   // Sent with each request.
  std::map<std::string, std::string> otlp_resource;  // Further attributes of the process.
  uint64_t otlp_timeout_ms = 3'000;                  // Of one request.
  double otlp_sample_ratio = 1;                      // Of calls that are traced, 0 to 1.
};

struct StoreConfig {
  // Where this node is reached: host, host:port or [v6]:port.
  std::string local_hostname;
  // "P2PHANDSHAKE" (endpoints travel in leases) or a redis:// URL.
  std::string transport_metadata_url = "P2PHANDSHAKE";
  // memory://NAME, sqlite:///absolute/path.db, redis://[user:pass@]host:port/db (rediss:// with
  // TLS) or etcd://[user:pass@]host:port[,host:port][/prefix]. docs/operations.md has them all.
  std::string metadata_url;
  uint64_t global_segment_size = 0;  // Bytes of storage offered to the cluster; 0: none.
  uint64_t local_buffer_size = 0;    // Bytes of the registered pool behind BufferPool; 0: none.
  std::string protocol = "tcp";      // tcp | rdma | auto.
  std::string device_name;           // Devices for rdma; comma separated.

  std::string stable_id;                 // Empty: generated, unique per process and call.
  std::string initial_state = "active";  // standby | active | draining | sealed | offline.
  std::string keyspace = "mc/store-rs/v2";
  std::string worker_scope;
  std::string tenant = "default";
  std::string domain = "default";
  std::string object_set = "default";
  std::map<std::string, std::string> labels;

  bool routed_writes = false;
  uint32_t replica_count = 1;
  uint32_t route_topk = 2;
  std::string route_control = "embedded_wrh";    // embedded_wrh | metadata_only.
  uint32_t slot_bits = 0;                        // 16..21; 0: what the cluster has.
  uint16_t transport_rpc_port = 0;               // 0: any free port.
  std::string transport_backend = "classic_te";  // classic_te | tent.
  std::string local_segment_name;                // Empty: "<stable_id>-segment".

  uint64_t lease_ttl_ms = 30'000;      // At most seven days.
  uint64_t heartbeat_interval_ms = 0;  // 0: a third of the lease.
  uint64_t request_timeout_ms = 65'000;
  uint64_t startup_timeout_ms = 20'000;
  uint64_t heartbeat_timeout_ms = 15'000;
  uint64_t transfer_stall_timeout_ms = 10'000;

  bool use_hugepage = false;
  uint64_t hugepage_size = 0;  // Bytes, 2 MiB or 1 GiB; 0: 2 MiB when use_hugepage.
  uint32_t eviction_high_watermark_percent = 90;  // 1..100.
  uint32_t eviction_low_watermark_percent = 80;   // Below the high watermark.

  // The local hot cache: copies of remote values. 0: none.
  uint64_t local_hot_cache_size = 0;
  uint64_t local_hot_block_size = 16ull << 20;  // The largest value that is kept.
  bool local_hot_cache_use_shm = false;         // Of a daemon: dummy clients share it.
  bool local_hot_cache_validate = true;         // Ask the key's authority before each use.
  uint64_t local_hot_cache_max_age_ms = 1'000;  // Without validation: of a copy in use.

  std::string cluster_secret;  // Empty: peers are not authenticated.

  // The process's metrics server, started after setup unless it runs. Empty, false: not started.
  std::string metrics_addr;  // host:port.
  bool enable_client_http_server = false;
  uint16_t client_http_port = 0;  // On the loopback; 0: any free port.
  TraceConfig trace;

  std::string redis_username;  // Used where the URL names none.
  std::string redis_password;
  uint64_t redis_connect_timeout_ms = 3'000;  // Also of etcd.
  uint64_t redis_io_timeout_ms = 3'000;       // Likewise.
};

// Parses "512MB", "1.5 gib", "4096": NUMBER[unit], unit B, K, M, G or T with an optional B or
// iB, any case, spaces allowed, always 1024-based. kInvalidArgument names `field` and `text`.
Result<uint64_t> ParseSize(std::string_view field, std::string_view text);

// Builds a configuration from named values, environment and defaults, in that order of
// precedence. Values are text in the form that flags take. Unknown names, bad values and
// contradictions are kInvalidArgument with the name, the value and what is allowed.
// `environment` holds the variables to consult (usually all of the process).
Result<StoreConfig> ConfigFromValues(const std::map<std::string, std::string>& values,
                                     const std::map<std::string, std::string>& environment);

// Names that ConfigFromValues knows but that are not in `values`' spelling: the nearest known
// name for an unknown one, for "did you mean". Empty: `name` is known, or nothing is near.
std::string NearestConfigName(const std::string& name);
bool IsConfigName(const std::string& name);

// The table of docs/configuration.md, as Markdown.
std::string ConfigTableMarkdown();

}  // namespace mooncake

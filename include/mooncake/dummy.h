// DummyConfig: how to become a client of a standalone daemon (mooncake-store-rs-client) on this
// host, instead of a node of the cluster. Store::OpenDummy takes it.
//
//   mooncake::DummyConfig config;
//   config.server_address = "127.0.0.1:16590";
//   auto store = mooncake::Store::OpenDummy(config);
//
// What the store does then, and what it refuses: docs/dummy-mode.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "mooncake/result.h"

namespace mooncake {

// Where memory lies in a memory file that the daemon can map as well.
struct SharedRange {
  uint64_t allocation = 0;  // Names the allocation for ever, so that reuse of its address shows.
  int fd = -1;              // Of the memory file, sealed against shrinking. Borrowed.
  uint64_t file_size = 0;
  uint64_t offset = 0;  // Of the range in the file.
};

struct DummyConfig {
  std::string server_address;  // "host:port" of the daemon.
  std::string keyspace;        // Empty: none.
  std::string worker_scope;    // Empty: the keyspace, else "worker-1".
  std::string cluster_secret;  // Empty: the daemon has none.
  uint64_t connect_timeout_ms = 2'000;
  uint64_t rpc_timeout_ms = 65'000;  // Of a call that makes progress.
  // Finds [data, data + size) among the process's shared allocations, so that it can be
  // registered. Empty: no memory can be. Called from many threads, without a lock.
  std::function<std::optional<SharedRange>(const void* data, size_t size)> find_shared;
};

// From named texts (server_address, keyspace, worker_scope) and the environment (MC_STORE_RS_
// KEYSPACE, CLUSTER_SECRET, CLUSTER_SECRET_FILE, DUMMY_RPC_TIMEOUT_MS). kInvalidArgument: names
// the argument, the value and what is allowed.
Result<DummyConfig> DummyConfigFromValues(const std::map<std::string, std::string>& values,
                                          const std::map<std::string, std::string>& environment);

}  // namespace mooncake

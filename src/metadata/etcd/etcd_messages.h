// etcd's messages (proto/mooncake/etcd.proto), serialised and parsed, as far as they are used here.
// Whatever bytes come, the result is a message or kMetadata.
//
// Pure functions, thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/result.h"

namespace mooncake::metadata {

struct EtcdRange {
  std::string key;
  std::string end;             // Empty: only `key`. Else all keys from `key` to before it.
  uint64_t revision = 0;       // As of this revision of etcd; 0: now.
  uint64_t changed_since = 0;  // Only keys that were written at this revision or later.
  uint64_t oldest_max = 0;     // Only so many, those that were written first; 0: all.
  bool keys_only = false;
  bool count_only = false;
};

struct EtcdKey {
  std::string key;
  std::string value;
  uint64_t written = 0;  // The revision of etcd that wrote it last.
  uint64_t lease = 0;    // The etcd lease that ends it; 0: none.
};

struct EtcdRangeResult {
  std::vector<EtcdKey> keys;
  uint64_t count = 0;
};

struct EtcdRead {
  std::vector<EtcdRangeResult> ranges;
  uint64_t revision = 0;  // Of etcd, as of which they were read.
  uint64_t cluster = 0;   // Another one: a service that lost everything.
};

// All or nothing, and only if each expected key was last written at that revision (0: absent).
struct EtcdCommit {
  struct Expected {
    std::string key;
    uint64_t written = 0;
  };
  std::vector<Expected> expected;
  std::vector<EtcdKey> puts;  // `written` is ignored.
  std::vector<std::string> erased;

  bool empty() const { return puts.empty() && erased.empty(); }
};

std::string ReadRequest(std::span<const EtcdRange> ranges);
Result<EtcdRead> ReadFrom(std::string_view reply, size_t ranges);

std::string CommitRequest(const EtcdCommit& commit);
Result<bool> CommitFrom(std::string_view reply);  // False: not as expected, nothing happened.

std::string GrantRequest(uint64_t ttl_s);
Result<uint64_t> GrantFrom(std::string_view reply);  // The lease.

std::string KeepAliveRequest(uint64_t lease);
Result<bool> KeepAliveFrom(std::string_view reply);  // False: the lease is gone.

std::string LoginRequest(const std::string& username, const std::string& password);
Result<std::string> LoginFrom(std::string_view reply);  // The token, printable.

}  // namespace mooncake::metadata

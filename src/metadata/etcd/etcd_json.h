// etcd's messages (package etcdserverpb) in the JSON that its gateway takes and gives, as far as
// they are used here. Parsing is strict and bounded: whatever bytes come, the result is a message
// or kMetadata.
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

// What a server says instead of an answer; `code` is that of gRPC, 0 if the text is no refusal.
struct EtcdRefusal {
  int code = 0;
  std::string message;  // Printable.
};

std::string ReadToJson(std::span<const EtcdRange> ranges);
Result<EtcdRead> ReadFromJson(std::string_view json, size_t ranges);

std::string CommitToJson(const EtcdCommit& commit);
Result<bool> CommitFromJson(std::string_view json);  // False: not as expected, nothing happened.

std::string GrantToJson(uint64_t ttl_s);
Result<uint64_t> GrantFromJson(std::string_view json);  // The lease.

std::string KeepAliveToJson(uint64_t lease);
Result<bool> KeepAliveFromJson(std::string_view json);  // False: the lease is gone.

std::string LoginToJson(const std::string& username, const std::string& password);
Result<std::string> LoginFromJson(std::string_view json);  // The token.

EtcdRefusal RefusalFromJson(std::string_view json);

}  // namespace mooncake::metadata

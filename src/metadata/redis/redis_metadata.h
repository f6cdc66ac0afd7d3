// MetadataStore in a Redis server (3.2 or newer), for clusters. Leases
// expire by the server's clock. Every operation is one round trip, and a constant number of keys
// under "{keyspace}/" holds everything, in one slot of a Redis Cluster.
//
// Thread-safe. A server that is gone costs nothing, one that hangs costs the timeouts; each call
// reconnects, authenticates and selects the database by itself. After fork the child's calls are
// kInvalidState.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/metadata_store.h"
#include "metadata/redis/redis_pool.h"

namespace mooncake::metadata {

struct RedisOptions {
  std::string keyspace = {};
  std::string username = {};  // Used where the URL names none.
  std::string password = {};  // As well.
  RedisTimeouts timeouts = {};
};

class RedisMetadata final : public MetadataStore {
 public:
  // Does not connect yet: a server may come later than its clients. kInvalidArgument: not such a
  // URL, or a file for TLS that cannot be used. `runtime` outlives the store.
  static Result<std::unique_ptr<MetadataStore>> Open(std::string_view url,
                                                     const RedisOptions& options, Runtime& runtime);
  RedisMetadata(RedisAddress address, const RedisOptions& options, Runtime& runtime);

  Result<NodeId> Acquire(const LeaseRecord& record, uint64_t ttl_ms, std::optional<uint64_t> beside,
                         bool replace) override;
  Result<RenewResult> Renew(const LeaseRecord& record, uint64_t ttl_ms) override;
  Status Release(const NodeId& id, uint32_t instance) override;
  Result<uint64_t> Poll() override;
  Result<MembershipChanges> ReadChanges(uint64_t since) override;
  Status ReportSuspect(const NodeId& id) override;
  Result<RoutePolicy> PutRoutePolicyIfAbsent(const RoutePolicy& policy) override;
  Result<Document> GetDocument(const std::string& name) override;
  Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                               uint64_t expected_version) override;
  Result<std::vector<NamedDocument>> ListDocuments(const std::string& prefix) override;
  void EndBy(uint64_t deadline_ms) override { pool_.EndBy(deadline_ms); }
  bool Denies() const override { return pool_.denied(); }

 private:
  // The answer's first item is its kind; at least `items_min` items or kMetadata.
  Result<std::vector<std::string>> Run(const std::vector<std::string>& arguments, size_t items_min);
  // Names one call, so that the script knows it again.
  std::string NewToken();

  Runtime& runtime_;
  const std::string prefix_;
  RedisPool pool_;
};

}  // namespace mooncake::metadata

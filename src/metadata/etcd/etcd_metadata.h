// MetadataStore in an etcd cluster (3.4 or newer), spoken to by gRPC (docs/adr/0012).
// Leases expire by etcd's clock, in whole seconds rounded up, and not faster than etcd's minimum.
//
// Thread-safe. A member that is gone costs nothing, one that hangs costs the timeouts; each call
// reconnects, logs in and goes to the next member by itself. After fork the child's calls are
// kInvalidState and leave the parent's connections alone.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "metadata/etcd/etcd_client.h"
#include "metadata/etcd/etcd_table.h"
#include "metadata/table_store.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

struct EtcdOptions {
  std::string keyspace = {};
  EtcdTimeouts timeouts = {};
};

class EtcdMetadata final : public TableStore {
 public:
  // Does not connect yet: a service may come later than its clients. kInvalidArgument: not such a
  // URL, or a file for TLS that cannot be used. `runtime` outlives the store.
  static Result<std::unique_ptr<MetadataStore>> Open(std::string_view url,
                                                     const EtcdOptions& options, Runtime& runtime);
  EtcdMetadata(EtcdAddress address, const EtcdOptions& options, Runtime& runtime);

  void EndBy(uint64_t deadline_ms) override { client_.EndBy(deadline_ms); }
  bool Denies() const override { return client_.denied(); }

 private:
  // What one run of a body came to.
  enum class Run { kDone, kAgain };
  // A commit whose answer was lost, and the key that tells whether it happened.
  struct Unsure {
    std::string key;
    std::string nonce;
    std::string doubt;  // Of the latest commit; empty: what became of it is known.
  };

  Status Transact(Access access, const Body& body) override;
  Status TransactBy(uint64_t deadline_ms, const Body& body);
  Result<Run> TryOnce(const Body& body, uint64_t deadline_ms, EtcdGrants& grants, Unsure& unsure);
  Result<bool> Happened(const Unsure& unsure, uint64_t deadline_ms);
  EtcdSeen Seen();
  void Remember(const EtcdSeen& seen);

  Runtime& runtime_;
  const pid_t pid_;
  const std::string prefix_;
  EtcdClient client_;
  std::atomic<uint64_t> forgiving_until_ms_{0};  // See EtcdSeen::was_away.
  base::Mutex mu_;
  EtcdSeen seen_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::metadata

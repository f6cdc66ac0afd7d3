// The few calls of etcd that are used, typed. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "metadata/etcd/etcd_messages.h"
#include "metadata/etcd/etcd_transport.h"

namespace mooncake::metadata {

enum class EtcdOutcome {
  kDone,
  kNotAsExpected,  // Nothing happened; look again.
  kUnknown,        // The answer was lost; a look at a key that it writes tells.
};

class EtcdClient {
 public:
  EtcdClient(EtcdAddress address, EtcdTimeouts timeouts, Runtime& runtime);

  // All ranges as of one moment, in one command. `outdated`, if it fails: a range wanted a
  // revision that etcd does not remember any more.
  Result<EtcdRead> Read(std::span<const EtcdRange> ranges, uint64_t deadline_ms, bool& outdated);
  // Never sent twice. `doubt`: why the outcome is kUnknown, else empty.
  Result<EtcdOutcome> Commit(const EtcdCommit& commit, uint64_t deadline_ms, std::string& doubt);
  // A new etcd lease, which may get longer than asked: etcd has a minimum.
  Result<uint64_t> Grant(uint64_t ttl_s, uint64_t deadline_ms);
  Result<bool> KeepAlive(uint64_t lease, uint64_t deadline_ms);  // False: it is gone.

  const EtcdTimeouts& timeouts() const { return transport_.timeouts(); }
  void EndBy(uint64_t deadline_ms) { transport_.EndBy(deadline_ms); }
  bool denied() const { return transport_.denied(); }

 private:
  EtcdTransport transport_;
};

}  // namespace mooncake::metadata

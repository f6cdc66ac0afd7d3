// MetadataStore over transactions on a LeaseTable: checks and encodes on the way in, runs
// LeaseRules inside, decodes on the way out. Adapters derive and supply Transact.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "metadata/lease_table.h"

namespace mooncake::metadata {

enum class Access : uint8_t { kRead, kWrite };

class TableStore : public MetadataStore {
 public:
  Result<NodeId> Acquire(const LeaseRecord& record, uint64_t ttl_ms, std::optional<uint64_t> beside,
                         bool replace) final;
  Result<RenewResult> Renew(const LeaseRecord& record, uint64_t ttl_ms) final;
  Status Release(const NodeId& id, uint32_t instance) final;
  Result<uint64_t> Poll() final;
  Result<MembershipChanges> ReadChanges(uint64_t since) final;
  Status ReportSuspect(const NodeId& id) final;
  Result<RoutePolicy> PutRoutePolicyIfAbsent(const RoutePolicy& policy) final;
  Result<Document> GetDocument(const std::string& name) final;
  Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                               uint64_t expected_version) final;
  Result<std::vector<NamedDocument>> ListDocuments(const std::string& prefix) final;

 protected:
  using Body = std::function<void(LeaseTable& table, uint64_t now_ms)>;
  // Runs `body` alone and all or nothing. It may run again when the first try did not commit.
  virtual Status Transact(Access access, const Body& body) = 0;
};

}  // namespace mooncake::metadata

#include "metadata/table_store.h"

#include "metadata/lease_rules.h"
#include "metadata/records.h"

namespace mooncake::metadata {

Result<NodeId> TableStore::Acquire(const LeaseRecord& record, uint64_t ttl_ms,
                                   std::optional<uint64_t> beside, bool replace) {
  MC_RETURN_IF_ERROR(CheckLease(record, ttl_ms));
  MC_TRY(const EncodedLease encoded, EncodeLease(record));
  Result<NodeId> outcome = NodeId{};
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    outcome =
        LeaseRules(table, now_ms).Acquire(record.id.stable_id, encoded, ttl_ms, beside, replace);
  }));
  return outcome;
}

Result<RenewResult> TableStore::Renew(const LeaseRecord& record, uint64_t ttl_ms) {
  MC_RETURN_IF_ERROR(CheckLease(record, ttl_ms));
  if (record.id.epoch == 0) return InvalidArgument("a lease without an epoch cannot be renewed");
  MC_TRY(const EncodedLease encoded, EncodeLease(record));
  Result<RenewResult> outcome = RenewResult{};
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    outcome = LeaseRules(table, now_ms).Renew(record.id, encoded, ttl_ms);
  }));
  return outcome;
}

Status TableStore::Release(const NodeId& id, uint32_t instance) {
  if (id.epoch > kEpochMax) return Ok();
  Status outcome;
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    outcome = LeaseRules(table, now_ms).Release(id, instance);
  }));
  return outcome;
}

Result<uint64_t> TableStore::Poll() {
  // Nearly always there is nothing to end, and readers do not wait for each other.
  std::optional<uint64_t> revision;
  MC_RETURN_IF_ERROR(Transact(Access::kRead, [&](LeaseTable& table, uint64_t now_ms) {
    revision = LeaseRules(table, now_ms).Peek();
  }));
  if (revision) return *revision;
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    revision = LeaseRules(table, now_ms).Sweep();
  }));
  return *revision;
}

Result<MembershipChanges> TableStore::ReadChanges(uint64_t since) {
  std::optional<MembershipChanges> changes;
  MC_RETURN_IF_ERROR(Transact(Access::kRead, [&](LeaseTable& table, uint64_t now_ms) {
    LeaseRules rules(table, now_ms);
    changes.reset();
    if (rules.Peek()) changes = rules.ReadChanges(since);
  }));
  if (changes) return *std::move(changes);
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    LeaseRules rules(table, now_ms);
    rules.Sweep();
    changes = rules.ReadChanges(since);
  }));
  return *std::move(changes);
}

Status TableStore::ReportSuspect(const NodeId& id) {
  if (id.epoch > kEpochMax) return Ok();
  Status outcome;
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    outcome = LeaseRules(table, now_ms).ReportSuspect(id);
  }));
  return outcome;
}

Result<RoutePolicy> TableStore::PutRoutePolicyIfAbsent(const RoutePolicy& policy) {
  MC_TRY(const std::string json, RoutePolicyToJson(policy));
  std::string in_force;
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    in_force = LeaseRules(table, now_ms).PutPolicyIfAbsent(json);
  }));
  return RoutePolicyFromJson(in_force);
}

Result<MetadataStore::Document> TableStore::GetDocument(const std::string& name) {
  MC_RETURN_IF_ERROR(CheckDocument(name, {}));
  Document document;
  MC_RETURN_IF_ERROR(Transact(
      Access::kRead, [&](LeaseTable& table, uint64_t) { document = table.ReadDocument(name); }));
  return document;
}

Result<uint64_t> TableStore::PutDocument(const std::string& name, const std::string& text,
                                         uint64_t expected_version) {
  MC_RETURN_IF_ERROR(CheckDocument(name, text));
  Result<uint64_t> outcome = uint64_t{0};
  MC_RETURN_IF_ERROR(Transact(Access::kWrite, [&](LeaseTable& table, uint64_t now_ms) {
    outcome = LeaseRules(table, now_ms).PutDocument(name, text, expected_version);
  }));
  return outcome;
}

Result<std::vector<MetadataStore::NamedDocument>> TableStore::ListDocuments(
    const std::string& prefix) {
  MC_RETURN_IF_ERROR(CheckDocument(prefix, {}));
  std::vector<NamedDocument> documents;
  MC_RETURN_IF_ERROR(Transact(Access::kRead, [&](LeaseTable& table, uint64_t) {
    documents = table.DocumentsNamed(prefix);
  }));
  return documents;
}

}  // namespace mooncake::metadata

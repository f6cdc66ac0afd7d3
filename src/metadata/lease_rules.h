// The rules of MetadataStore (epochs, lapse, revisions) over a LeaseTable, so that memory and
// SQLite cannot differ. Redis has the same rules as a script (redis/redis_script.cc).
//
// A revision is never smaller than the service's clock in milliseconds when it was made. So a
// service that lost everything goes on with larger revisions than those that its clients know.
#pragma once

#include <optional>
#include <string>

#include "metadata/lease_table.h"

namespace mooncake::metadata {

inline constexpr uint64_t kEpochMarkMs = uint64_t{7} * 24 * 3600 * 1000;
inline constexpr size_t kGoneMax = 1000;
inline constexpr size_t kLapsedMax = 10'000;  // Ended in one call; the next call goes on.

// One call's view of the table at one time. Records are checked before they come here.
class LeaseRules {
 public:
  LeaseRules(LeaseTable& table, uint64_t now_ms) : table_(table), now_ms_(now_ms) {}

  Result<NodeId> Acquire(const std::string& stable_id, const EncodedLease& record, uint64_t ttl_ms,
                         std::optional<uint64_t> beside, bool replace);
  Result<RenewResult> Renew(const NodeId& id, const EncodedLease& record, uint64_t ttl_ms);
  Status Release(const NodeId& id, uint32_t instance);
  Status ReportSuspect(const NodeId& id);
  // Ends the lapsed leases and returns the revision.
  uint64_t Sweep();
  // As Sweep, but only looks: no value when there is something to end.
  std::optional<uint64_t> Peek();
  // REQUIRES: Sweep or Peek found the table swept.
  MembershipChanges ReadChanges(uint64_t since);
  std::string PutPolicyIfAbsent(const std::string& json);
  Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                               uint64_t expected_version);

 private:
  uint64_t NextRevision();
  std::optional<StoredLease> Find(const NodeId& id);
  // The epoch that has superseded `id`, which has no lease; 0: none.
  uint64_t SuccessorOf(const NodeId& id);
  void Mark(const NodeId& id);
  void End(const NodeId& id);
  void Start(const NodeId& id, const EncodedLease& record, uint64_t ttl_ms);

  LeaseTable& table_;
  const uint64_t now_ms_;
};

// The message of a Renew that comes too late.
Error SupersededBy(const NodeId& id, uint64_t epoch);
// That of a Renew whose id is by now, after the service lost its marks, another process's.
Error TakenByAnother(const NodeId& id);
// The message of an Acquire that lost.
Error HeldBy(const NodeId& holder, const EncodedLease& record);
// Adds a lease that a service returned. One that cannot be read is no member: it must not blind
// the readers of all others.
void AddChange(const NodeId& id, const EncodedLease& record, bool suspect,
               MembershipChanges& changes);

}  // namespace mooncake::metadata

// MetadataStore port: what the cluster must agree on and little else. Leases with epochs that
// the service assigns, the segments that a lease's owner offers, the route policy, and one
// revision number that grows with every change of the membership. Routes and bytes never pass
// here; no request needs it.
//
// Adapters: memory (one process), sqlite (one host), redis, etcd; all pass the contract suite in
// tests/unit/metadata/contract.h. The clock that expires leases is the service's own wherever
// it has one (Redis TIME, etcd's leases), so that the clocks of the nodes do not matter.
//
// Thread-safe. Every call is bounded by the adapter's timeouts and reconnects by itself.
// Errors: kMetadata when the service did not answer or refused; the others as stated.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/result.h"

namespace mooncake {

// A running client runtime. Printed "stable_id:epoch".
struct NodeId {
  std::string stable_id;
  uint64_t epoch = 0;

  std::string ToString() const { return stable_id + ":" + std::to_string(epoch); }
  auto operator<=>(const NodeId&) const = default;
};

// Keys are divided into 2^slot_bits slots, as many as the cluster was founded with. Every node
// keeps a table of them, so there is a largest number; the ranks of the smallest are cheap.
inline constexpr uint32_t kSlotBitsMin = 16;
inline constexpr uint32_t kSlotBitsMax = 21;
inline constexpr uint32_t kSlotBitsDefault = 16;  // Also of those too old to say.

constexpr bool IsSlotBits(uint32_t bits) { return bits >= kSlotBitsMin && bits <= kSlotBitsMax; }

enum class NodeState : uint8_t { kStandby, kActive, kDraining, kSealed, kOffline };

struct SegmentRecord {
  std::string name;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;               // As of the last heartbeat; a hint for placement.
  NodeState state = NodeState::kActive;  // kActive, kDraining, or kOffline for retired.

  bool operator==(const SegmentRecord&) const = default;
};

struct LeaseRecord {
  NodeId id;
  NodeState state = NodeState::kStandby;
  std::string endpoint;  // host:port of the node port; empty: not reachable.
  uint32_t protocol_major = 1;
  uint32_t protocol_minor = 0;
  std::string host;  // Identifies the machine (boot id), for same-host decisions.
  uint64_t pid = 0;
  // Drawn at each start. Names and epochs can repeat in another cluster, addresses are given
  // to other processes; this tells them apart. 0: of a node too old to have one.
  uint32_t instance = 0;
  uint32_t slot_bits = kSlotBitsDefault;  // Of the slots by which the node finds keys.
  // The revision by which the cluster began that this node's knowledge comes from: what was put
  // under an older one it may hold, but those of a newer one need not know of. 0: it says nothing.
  uint64_t era = 0;
  // The epoch of the live process of the same name whose successor this node is to be, until it
  // is active; 0: none. As long as it is set, that process is not superseded.
  uint64_t beside = 0;
  std::map<std::string, std::string> labels;
  std::vector<SegmentRecord> segments;
  // Set by others who could not reach this node's data path; the node is not an authority and
  // gets no new copies while it is set. Cleared by the node's own Renew.
  bool suspect = false;

  bool operator==(const LeaseRecord&) const = default;
};

// What changed since a revision. `full`: `leases` is the whole membership, replace everything.
struct MembershipChanges {
  uint64_t revision = 0;
  bool full = false;
  std::vector<LeaseRecord> leases;  // New or changed.
  std::vector<NodeId> gone;         // Released or lapsed. Empty when full.
};

struct RenewResult {
  uint64_t revision = 0;     // After the renewal.
  bool was_suspect = false;  // Others had marked this node; this renewal cleared it.
  bool recreated = false;    // The service had lost the lease (restart, lapse); it is back.
};

// The cluster-wide routing policy, written by the first client.
struct RoutePolicy {
  uint32_t route_topk = 2;
  std::string route_control = "embedded_wrh";
  uint32_t slot_bits = kSlotBitsDefault;
  std::string created_by;
  uint64_t created_at_ms = 0;
};

class MetadataStore {
 public:
  virtual ~MetadataStore() = default;

  // Starts a lease for `record.id.stable_id`; `record.id.epoch` is ignored. The service assigns
  // the epoch: one more than every epoch of this stable_id that is live or was within 7 days.
  // kConflict, naming the holder as "stable_id:epoch at endpoint", when a live lease of the
  // stable_id exists and `beside` is not its epoch. `beside`: the epoch of a live holder that
  // the caller knows to be replaceable (a dead process, or its upgrade predecessor); the old
  // lease stays until it is released or lapses, unless `replace` is set, which ends it at once.
  virtual Result<NodeId> Acquire(const LeaseRecord& record, uint64_t ttl_ms,
                                 std::optional<uint64_t> beside, bool replace) = 0;

  // Heartbeat and change of the record in one. Extends the lease by ttl_ms from now, and
  // recreates it when the service lost it, unless a higher epoch of the stable_id lives or
  // lived, or the lease is that of another instance by now: kStaleEpoch. A live lease whose
  // record says that it is `beside` this one does not count. Bumps the revision only if the
  // record changed in what others act on (everything but used_bytes), or the lease was
  // recreated, or suspicion was cleared.
  virtual Result<RenewResult> Renew(const LeaseRecord& record, uint64_t ttl_ms) = 0;

  // Ends the lease. Idempotent: also Ok when it does not exist. It ends none that is another
  // instance's than `instance` by now (0: whoever has it), and that is Ok as well.
  virtual Status Release(const NodeId& id, uint32_t instance) = 0;

  // The current revision, after ending the leases that have lapsed (each counts as a change).
  // One small command; every node sends it about once a second.
  virtual Result<uint64_t> Poll() = 0;

  // All changes after revision `since`; 0, or one older than the service remembers, or one that
  // is newer than the service's own (it came back empty): full.
  virtual Result<MembershipChanges> ReadChanges(uint64_t since) = 0;

  // Marks a node as unreachable for its peers. Ok, without effect, when it is already marked or
  // has no such lease. Bumps the revision when it has an effect.
  virtual Status ReportSuspect(const NodeId& id) = 0;

  // Returns the policy in force: the given one if there was none.
  virtual Result<RoutePolicy> PutRoutePolicyIfAbsent(const RoutePolicy& policy) = 0;

  // Small named documents with versions, for tenant policies, handoff plans and the like.
  // Get: version 0 and empty text when absent. Put: kConflict unless `expected_version` is the
  // current one; an empty text deletes. Returns the new version. A document whose name begins
  // with kWatchedPrefix belongs to what all nodes act on: each change of it bumps the revision.
  static constexpr std::string_view kWatchedPrefix = "system/";
  struct Document {
    uint64_t version = 0;
    std::string text;
  };
  struct NamedDocument {
    std::string name;
    Document document;
  };
  virtual Result<Document> GetDocument(const std::string& name) = 0;
  virtual Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                                       uint64_t expected_version) = 0;
  // The documents whose names begin so, in the order of their names.
  virtual Result<std::vector<NamedDocument>> ListDocuments(const std::string& prefix) = 0;

  // From now on every call, also one that is being waited in, ends by then (Runtime::NowMs), and
  // later ones fail at once. For a node that leaves beside a service that hangs. A later call
  // moves the limit, either way. Does nothing where calls do not wait.
  virtual void EndBy(uint64_t /*deadline_ms*/) {}

  // Whether the last call failed because the service refuses the user, the password or the
  // database: the same call will fail again until somebody changes the one or the other.
  virtual bool Denies() const { return false; }
};

}  // namespace mooncake

// Node: one running client runtime. Assembles the parts, joins the cluster, offers the verbs,
// leaves. Everything of the outside world comes in through NodePorts.
//
// Thread-safe, except Start. Close ends calls in progress within a few seconds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/gate.h"
#include "node/arrivals.h"
#include "node/core.h"
#include "node/evacuation.h"
#include "node/evictor.h"
#include "node/migration_worker.h"
#include "node/node_service.h"
#include "node/outbox.h"
#include "node/put_op.h"
#include "node/query_op.h"
#include "node/quota_ledger.h"
#include "node/read_op.h"
#include "node/reconciler.h"

namespace mooncake::node {

struct NodePorts {  // All outlive the Node.
  Runtime& runtime;
  MetadataStore& metadata;
  Transport& transport;
  Metrics& metrics;
};

struct NodeConfig {
  NodeOptions options;
  MembershipOptions membership;
  std::string stable_id;
  std::string listen_host;
  uint16_t listen_port = 0;
  std::string host_id;  // Identifies the machine.
  uint64_t pid = 0;
  uint32_t protocol_minor = kProtocolMinor;  // Told to the others; tests pretend another.
  NodeState initial_state = NodeState::kActive;
  bool succeeds = false;  // A live node of this name is fine: this one is to succeed it.
  std::map<std::string, std::string> labels;
  std::string segment_name;
  uint64_t segment_bytes = 0;
  uint64_t hugepage_bytes = 0;
  bool shared_segments = false;  // Other processes of this host may map them to read.
  uint64_t startup_timeout_ms = 20'000;
};

class Node {
  struct Private {};  // Only Start makes nodes.

 public:
  Node(const NodeConfig& config, NodePorts ports, Private);
  // Joins the cluster; leaves nothing behind when it fails.
  static Result<std::unique_ptr<Node>> Start(const NodeConfig& config, NodePorts ports);
  ~Node();  // Closes.
  void Close();

  Core& core() { return *core_; }
  // Holds Close back while a caller uses the core. Enter is false after Close.
  base::Gate& gate() { return gate_; }

  const std::string& endpoint() const { return endpoint_; }
  std::string name() const { return membership_->self_name(); }
  // While the metadata service is away, a node takes no more values at once, and the others hear of
  // it later. That it takes some has to reach the service, which may say that somebody else has the
  // name by now, or the state stays as it is: kMetadata. But the others may never have heard that
  // it took none.
  Status SetState(NodeState state);
  Status Heartbeat(std::optional<uint64_t> ttl_ms = std::nullopt) {
    return membership_->HeartbeatNow(ttl_ms);
  }
  // These three need no metadata service: while it is away the others hear of it later.
  // Adds a segment named "<first segment>-ext-<n>", a name that no other node has, as far as the
  // view tells. kNoSpace: the memory cannot be had.
  Result<SegmentStats> ExpandMemory(uint64_t bytes);
  // No new copies go to the segment from now on; moves what is in it, as far as there is room.
  // Ok when it was draining already. kInvalidState: the last active segment, or retired.
  Status DrainSegment(const std::string& name);
  // True: gone. False: something is still in it. kInvalidState: not draining.
  Result<bool> RetireSegment(const std::string& name);
  // Enters draining and moves every value elsewhere; `prefer` (a node's name) is tried first.
  // Empty: the successor of a handoff, once it is active, if one was planned.
  Result<EvacuationResult> EvacuateAll(const std::string& prefer, uint64_t deadline_ms);
  // Tells the standby with our stable_id (the newest, or the one with `epoch`) to take over.
  // kInvalidState: there is none. kMetadata: the service, by which it is told, does not answer.
  Result<NodeId> PlanHandoff(std::optional<uint64_t> epoch, uint64_t deadline_ms);
  // Brings the lease's idea of the segments up to date with the store's. What has been done to them
  // holds whether the others hear of it or not: while the metadata service is away that is Ok, too,
  // and heartbeats tell them when it is back.
  Status PublishSegments();
  // The leases of the view, with the usage of the segments as of the last heartbeats, which views
  // do not follow, and of those that have joined since. Asks the metadata service; where that
  // does not answer within its timeouts, as the view has them.
  std::vector<LeaseRecord> ReadMembers();

  // The policy of a tenant, for the whole cluster; returns its version. All nodes that answer
  // follow it when this returns, the others with their next look at the membership. kConflict:
  // `expected_version` (0: none yet) is not the current one. kUnsupported, kInvalidArgument: as
  // TenantPolicyToJson.
  Result<uint64_t> SetTenantPolicy(std::string_view tenant, const TenantPolicy& policy,
                                   std::optional<uint64_t> expected_version);
  // kNotFound: it has none.
  Result<TenantPolicyRecord> GetTenantPolicy(std::string_view tenant);
  Status DeleteTenantPolicy(std::string_view tenant, std::optional<uint64_t> expected_version);

 private:
  Status Open();
  Status MapSegment();
  Status Listen();
  Status JoinCluster();
  // kUnsupported: a member speaks another major version, so neither would serve the other.
  Status CheckVersions() const;
  // kTransport: the members that answer have another cluster secret.
  Status CheckSecret();
  Status Announce(NodeState state, bool or_undo);
  HolderAnswer Ask(const LeaseRecord& holder);
  std::vector<SegmentRecord> SegmentRecords() const;
  void Leave();
  void TellAll(uint64_t revision);
  // Of this node, and then those of the others, by what it has told the metadata service.
  void RefreshViews(uint64_t wait_ms, bool of_others);
  std::string NextSegmentName() const;
  Result<NodeId> FindStandby(std::optional<uint64_t> epoch);
  Result<SegmentStats> FindSegment(const std::string& name) const;
  void WatchHandoff();
  void ApplyNewView(const ViewPtr& before, const ViewPtr& after);
  Result<uint64_t> PutTenantPolicy(std::string_view tenant, metadata::KnownPolicy policy,
                                   std::optional<uint64_t> expected_version);
  // The name of the planned successor once it serves; empty: none was planned, or it is late.
  std::string AwaitSuccessor(uint64_t deadline_ms);

  const NodeConfig config_;
  NodePorts ports_;
  base::Gate gate_;
  std::string endpoint_;
  NodeService service_;
  ExtentStore extents_;
  ScopeTable scopes_;
  TenantMeter meter_;
  QuotaLedger ledger_;
  std::unique_ptr<RouteTable> routes_;  // Once the cluster's number of slots is known.
  DedupTable dedup_;
  RoomTable rooms_{config_.options.low_watermark_percent};
  std::unique_ptr<Membership> membership_;
  std::unique_ptr<Peers> peers_;
  std::unique_ptr<NameTable> names_;  // Once the own name is known.
  std::unique_ptr<Evictor> evictor_;
  std::unique_ptr<Outbox> outbox_;
  std::unique_ptr<Reconciler> reconciler_;
  std::unique_ptr<MigrationWorker> migrations_;
  std::unique_ptr<Core> core_;
  Arrivals arrivals_;
  std::unique_ptr<Event> handoff_stop_;
  std::unique_ptr<Thread> handoff_watch_;  // Of a standby.
  base::Mutex segments_mu_;                // One change of the segments at a time.
  struct Successor {
    NodeId id;
    uint64_t deadline_ms = 0;  // To become active by.
  };
  base::Mutex successor_mu_;
  std::optional<Successor> successor_ MC_GUARDED_BY(successor_mu_);  // As planned.
  std::atomic<bool> closed_{false};
};

}  // namespace mooncake::node

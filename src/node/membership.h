// Membership: this node's lease, and its picture of everybody else's.
//
// Two threads, so that neither waits for the other: one renews the lease, one polls the
// revision about once a second and installs a new view when it moved. Requests read the view as
// an immutable snapshot and never wait for the metadata service; while that is away, the last
// view stays in force (a lapse that nobody can confirm removes nobody).
//
// Suspicion is local evidence from the data path. It keeps calls off a peer for a quarantine
// and is reported to the metadata service in the background, whose mark then moves the slots of
// the peer for everybody at once (a new revision). The peer's next heartbeat clears the mark.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/mutex.h"
#include "metadata/metadata_store.h"
#include "node/tenant_meter.h"
#include "obs/metrics.h"
#include "routing/view.h"
#include "runtime/runtime.h"
#include "transfer/transport.h"

namespace mooncake::node {

using ViewPtr = std::shared_ptr<const routing::ClusterView>;

struct MembershipOptions {
  uint64_t lease_ttl_ms = 30'000;
  uint64_t heartbeat_interval_ms = 10'000;
  uint64_t poll_interval_ms = 1'000;
  uint64_t quarantine_ms = 5'000;
  std::string route_scope;
  std::string pool;  // Where this node's puts go; empty: everywhere.
  // Put down if this node founds the cluster. `slot_bits` 0: as many as the cluster has, and
  // kSlotBitsDefault if this node founds it.
  RoutePolicy policy{.slot_bits = 0};
};

// What Join needs to ask whether the holder of our stable_id still lives.
enum class HolderAnswer { kAlive, kLeaving, kGone, kSilent, kStranger };
using AskHolder = std::function<HolderAnswer(const LeaseRecord& holder)>;

class Membership {
 public:
  Membership(const MembershipOptions& options, Runtime& runtime, MetadataStore& metadata,
             Metrics& metrics);
  ~Membership();  // Stops.

  // Acquires the lease for `record` (its epoch is filled in), agrees with the others on the route
  // policy and builds the first view, by the cluster's number of slots. Waits, up to `deadline_ms`,
  // for a metadata service that does not answer, but not for one that refuses the credentials; and
  // up to one lease, if that is longer, for that of a silent holder to lapse. `succeed`: a live
  // holder is fine, this node is to take over from it. kInvalidArgument: the cluster runs with
  // another policy than the options ask for, or the record is one that no service keeps.
  Status Join(const LeaseRecord& record, bool succeed, uint64_t deadline_ms, const AskHolder& ask);
  // Starts the threads. `on_view` runs on the refresher's thread with every new view, before
  // view() shows it; it may call ports. `freshen`, if given, brings the own record up to date in
  // what nobody announces, before each renewal; it runs on any thread and calls no port.
  void Start(std::function<void(const ViewPtr& before, const ViewPtr& after)> on_view,
             std::function<void(LeaseRecord&)> freshen = {});
  // Stops the threads. The lease lapses by itself unless it was left.
  void Stop();
  // Stops the threads and ends the lease; returns the revision after that.
  Result<uint64_t> Leave();

  NodeId self() const;
  const std::string& self_name() const { return self_name_; }
  uint32_t instance() const { return instance_; }
  const routing::Slots& slots() const { return slots_; }  // Of the cluster. After Join.
  // Whether a request is meant for this process, not for one that had its address before.
  bool IsAddressee(uint32_t instance) const { return instance == 0 || instance == instance_; }
  ViewPtr view() const { return view_.load(std::memory_order_acquire); }
  LeaseRecord record() const;
  uint64_t era() const;  // As in the own lease.
  // How long a member of an older era than the others is one at least.
  uint64_t EraWaitMs() const;
  // Changes the own record and renews at once with it; heartbeats go on to tell of the change if
  // that fails, but `or_undo`: then the state is what it was.
  Status Update(const std::function<void(LeaseRecord&)>& change, bool or_undo = false);
  // `ttl_ms`: of the lease from now on, also for the heartbeats to come.
  Status HeartbeatNow(std::optional<uint64_t> ttl_ms = std::nullopt);
  uint64_t lease_ttl_ms() const { return lease_ttl_ms_.load(std::memory_order_relaxed); }

  // Asks for a view of at least `revision` (0: any fetch that starts after this call) and waits
  // for it. False: not by the deadline.
  bool RefreshTo(uint64_t revision, uint64_t deadline_ms);
  // For a request that needs what the view does not have: it may have joined a moment ago. Waits
  // for a look at the service, but not for long, and not again while that does not answer. Looks by
  // many requests within a moment are one.
  void LookAgain(uint64_t deadline_ms);
  // Asks without waiting.
  void RefreshSoon();
  // The same, and `on_view` runs in any case: also with the view in force, if that is the newest.
  void ReapplySoon();
  // The same at a time to come; 0: not any more. Refresher thread, from `on_view`.
  void ReapplyAt(uint64_t at_ms) { reapply_at_ms_ = at_ms; }

  // Data-path evidence.
  // `gone`: nobody listens at its address.
  void Suspect(const NodeId& id, bool gone = false);
  void Trust(const NodeId& id);  // It answered.
  bool Suspected(const NodeId& id) const;
  // Whether the last evidence was that nobody listens there, rather than silence.
  bool KnownGone(const NodeId& id) const;
  // How long the peer has been suspected; 0: it is not. That ends with the quarantine, or, while
  // the metadata service says that the peer has not cleared the mark that came of it, with the
  // mark: who sends no heartbeats is not worth another wait.
  uint64_t SuspectedForMs(const NodeId& id) const;
  // Whether this process stood still for so long (stopped, swapped, a suspended machine) that its
  // lease may have lapsed and its slots moved; until a fresh look at the membership it must not
  // answer for them. Not the same as a metadata service that is away: then nothing moves.
  bool Frozen() const;
  // Whether this process stood still, if only for a moment, after `since_ms`: a peer's silence
  // since then says nothing of the peer.
  bool StoodStillSince(uint64_t since_ms) const;
  // Waits for that look if needed, at most until `deadline_ms`. Cheap when not frozen.
  void AwaitThaw(uint64_t deadline_ms);
  // How long the view has had nobody to ask for routes (no node, or suspect ones only), and
  // suspects only to take what is put here; 0: it has somebody.
  uint64_t NobodyRoutesForMs() const { return AgeOf(nobody_routes_since_ms_); }
  uint64_t NobodyStoresForMs() const { return AgeOf(nobody_stores_since_ms_); }
  NodeState state() const { return state_.load(std::memory_order_relaxed); }
  // Since the service last confirmed the own lease.
  uint64_t LeaseAgeMs() const;
  // Whether the service says that another process has this node's name by now.
  bool superseded() const { return superseded_.load(); }
  // Whether, since the last call, the service has said that this node's lease was lost or that
  // others had given it up: somebody else may have served its slots.
  bool TakeLeaseLoss() { return lease_was_lost_.exchange(false); }
  // The policies of tenants as of the newest view. Refresher thread, from `on_view`.
  const TenantMeter::Policies& tenant_policies() const { return tenant_policies_; }

 private:
  struct Suspicion {
    uint64_t since_ms = 0;
    uint64_t until_ms = 0;
    bool reported = false;
    bool gone = false;
  };
  struct Look {
    uint64_t asked_ms = 0;
    uint64_t fetch = 0;  // That answers it; 0: there was none yet.
  };
  void HeartbeatLoop();
  void RenewSoon();  // On the heartbeat thread.
  uint64_t HeartbeatIntervalMs() const;
  void RefreshLoop();
  Status Renew();
  bool IsOutdated(LeaseRecord sent) const;
  Status AgreeOnPolicy();
  void RestorePolicy();
  void ForgetSuspicions();
  void RefreshOnce();
  bool NotePoll(uint64_t asked_ms, bool ok);  // Whether an outage has ended that was long.
  Status FetchView();
  Status FetchTenantPolicies(bool lost_some);
  Status FetchFirstView();  // And the era.
  uint64_t BeginEra(const Result<MetadataStore::Document>& kept);
  void SetEra(uint64_t era);
  void RaiseEra(uint64_t revision);
  Status RaiseEraIfAway();
  uint64_t NewestEra() const;
  void JoinEra();
  bool MayHaveLost(const LeaseRecord& lease) const;
  void Install(uint64_t revision);
  void NoteAbsences(const routing::ClusterView& view);
  uint64_t AgeOf(const std::atomic<uint64_t>& since_ms) const;
  void ReportSuspicions();
  bool IsMarked(const NodeId& id, uint64_t now_ms) const;
  void TickLoop();
  // So long that its lease may have lapsed, and the tick has not noticed it yet.
  bool StandsStill() const;
  bool TickIsLate() const;
  bool IsSucceeded(const NodeId& id) const;
  void KeepUnconfirmed(const std::map<NodeId, LeaseRecord>& previous);
  void DropUnconfirmed();
  void NoteHeartbeat(const Status& status);
  struct JoinAttempt;
  Status TryJoin(const LeaseRecord& record, bool succeed, const AskHolder& ask,
                 JoinAttempt* attempt);
  Status SettleNames(uint64_t deadline_ms, const AskHolder& ask);  // Or gives the lease back.

  const MembershipOptions options_;
  std::atomic<uint64_t> lease_ttl_ms_;
  Runtime& runtime_;
  MetadataStore& metadata_;
  Metrics& metrics_;
  std::string self_name_;                                        // Constant after Join.
  uint32_t instance_ = 0;                                        // Likewise.
  routing::Slots slots_;                                         // Likewise.
  std::function<void(const ViewPtr&, const ViewPtr&)> on_view_;  // Constant after Start.
  std::function<void(LeaseRecord&)> freshen_;                    // Likewise.

  std::atomic<ViewPtr> view_;
  std::atomic<uint64_t> fetches_started_{0};
  std::atomic<uint64_t> fetches_done_{0};
  std::atomic<uint64_t> last_tick_ms_{0};    // Of the ticker; old: the process stood still.
  std::atomic<uint64_t> stood_still_ms_{0};  // When the ticker last came late.
  std::atomic<uint64_t> freezes_{0};         // How often it did.
  std::atomic<uint64_t> thawed_{0};          // freezes_ as of the last look at the membership.
  std::atomic<NodeState> state_{NodeState::kStandby};
  std::atomic<bool> superseded_{false};
  std::atomic<uint64_t> lease_confirmed_ms_{0};      // When the last renewal that succeeded began.
  std::atomic<uint64_t> polled_ms_{0};               // When the last poll that succeeded began.
  std::atomic<uint64_t> nobody_routes_since_ms_{0};  // 0: somebody keeps routes,
  std::atomic<uint64_t> nobody_stores_since_ms_{0};  // takes values.
  std::atomic<int> suspect_count_{0};
  std::atomic<bool> lease_was_lost_{false};
  std::atomic<bool> service_was_away_{false};  // The last renewal was not answered.
  std::atomic<bool> reapply_{false};
  std::atomic<bool> renew_soon_{false};
  std::atomic<bool> stop_{false};

  std::map<NodeId, LeaseRecord> members_;  // Refresher thread only (and Join).
  uint64_t fetched_revision_ = 0;          // The service's of what `members_` has. Likewise.
  // Members that a full answer of the service left out (it came back empty), and until when
  // they may register themselves again. Likewise.
  std::map<NodeId, uint64_t> unconfirmed_;
  uint64_t outage_since_ms_ = 0;  // The first of the polls that fail; 0: they do not. Likewise.
  uint64_t outage_ended_ms_ = 0;  // Of the last outage that was long. Likewise.
  std::optional<routing::ViewBuilder> builder_;             // Likewise. Once the slots are known.
  TenantMeter::Policies tenant_policies_;                   // Likewise.
  std::map<std::string, std::string> tenant_policy_texts_;  // By document. Likewise.
  uint64_t reapply_at_ms_ = 0;                              // 0: at no time. Likewise.
  uint64_t other_era_ = 0;    // The newest one, where others are of one; 0: none is. Likewise.
  uint64_t join_era_ms_ = 0;  // When this node is of that one too. Likewise.

  mutable base::Mutex mu_;
  LeaseRecord record_ MC_GUARDED_BY(mu_);
  std::optional<RoutePolicy> policy_ MC_GUARDED_BY(mu_);
  std::map<NodeId, Suspicion> suspicions_ MC_GUARDED_BY(mu_);
  Look look_ MC_GUARDED_BY(mu_);  // The last one.

  std::unique_ptr<Event> beat_;     // Set: renew, if renew_soon_ says so, else with a new interval.
  std::unique_ptr<Event> refresh_;  // Set: poll now.
  std::unique_ptr<Event> fetched_;  // Set after every fetch.
  std::unique_ptr<Thread> heartbeat_thread_;
  std::unique_ptr<Event> tick_;  // Set: stop ticking.
  std::unique_ptr<Thread> refresh_thread_;
  std::unique_ptr<Thread> tick_thread_;
  uint32_t beat_failures_ = 0;  // Heartbeat thread only.
};

}  // namespace mooncake::node

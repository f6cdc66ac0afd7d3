// The part of Membership that joins: whose name it may take, and by which route policy.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "metadata/records.h"
#include "node/membership.h"
#include "obs/log.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kJoinRetryMs = 200;
// What a service may add to a lease: etcd counts in whole seconds and ends it up to one later.
constexpr uint64_t kLapseMs = 3'000;
// The newest one of the name.
const LeaseRecord* HolderOf(const std::string& stable_id, std::span<const LeaseRecord> leases) {
  const LeaseRecord* holder = nullptr;
  for (const LeaseRecord& lease : leases) {
    if (lease.id.stable_id != stable_id) continue;
    if (holder == nullptr || holder->id.epoch < lease.id.epoch) holder = &lease;
  }
  return holder;
}

Error HeldBy(const LeaseRecord& holder, HolderAnswer answer) {
  const std::string who = metadata::DescribeHolder(holder);
  const std::string& stable_id = holder.id.stable_id;
  switch (answer) {
    case HolderAnswer::kAlive:
    case HolderAnswer::kLeaving:
      return Conflict(fmt::format(
          "stable_id '{}' is held by the live node {}; choose another stable_id, stop that node, "
          "or start this one with initial_state=standby to succeed it",
          stable_id, who));
    case HolderAnswer::kSilent:
      return Conflict(fmt::format(
          "stable_id '{}': its holder {} does not answer, and its lease has not lapsed yet",
          stable_id, who));
    default:
      return Conflict(fmt::format(
          "stable_id '{}': at the address of its holder {} is a node with another cluster_secret",
          stable_id, who));
  }
}

// A third one of a name would not know which of the two it is to succeed.
Error NoPlaceBeside(const LeaseRecord& holder, const LeaseRecord& other) {
  return Conflict(fmt::format(
      "stable_id '{}' has two nodes already: {}, and its {} successor {}; allowed: one standby "
      "beside a node. Choose another stable_id, or stop one of the two (one that was killed goes "
      "when its lease has lapsed)",
      holder.id.stable_id, metadata::DescribeHolder(other), metadata::NodeStateName(holder.state),
      metadata::DescribeHolder(holder)));
}

// How fast a node has the name of a segment; the larger, the faster.
enum class Hold : uint8_t { kNone, kJoining, kGoing, kStays };

struct Namesake {
  Hold hold = Hold::kNone;
  const LeaseRecord* lease = nullptr;
  std::string segment;
};

// Who is suspect or does not answer does not keep a name, unless it is only about to: nobody
// answers before it has joined.
Hold HoldOf(const LeaseRecord& lease, const SegmentRecord& segment, HolderAnswer answer) {
  const auto drains = [](NodeState state) { return state == NodeState::kDraining; };
  switch (answer) {
    case HolderAnswer::kAlive:
      return drains(lease.state) || drains(segment.state) ? Hold::kGoing : Hold::kStays;
    case HolderAnswer::kLeaving: return Hold::kGoing;
    case HolderAnswer::kSilent:
      return lease.state == NodeState::kOffline ? Hold::kJoining : Hold::kNone;
    default: return Hold::kNone;
  }
}

// Puts name segments, so a name is that of one owner, which may be there twice: with its successor.
Namesake FindNamesake(const LeaseRecord& record, std::span<const LeaseRecord> others,
                      const AskHolder& ask) {
  Namesake found;
  for (const LeaseRecord& lease : others) {
    if (lease.id.stable_id == record.id.stable_id || lease.suspect) continue;
    for (const SegmentRecord& theirs : lease.segments) {
      const bool same =
          std::any_of(record.segments.begin(), record.segments.end(),
                      [&](const SegmentRecord& ours) { return ours.name == theirs.name; });
      if (!same || theirs.state == NodeState::kOffline) continue;
      const Hold hold = HoldOf(lease, theirs, ask(lease));
      if (hold > found.hold) found = {hold, &lease, theirs.name};
    }
  }
  return found;
}

Error NameTaken(const Namesake& by) {
  const bool stays = by.hold == Hold::kStays;
  const char* const but = by.hold == Hold::kGoing     ? ", which is leaving"
                          : by.hold == Hold::kJoining ? ", which joins at this moment"
                                                      : "";
  return Conflict(
      fmt::format("local_segment_name '{}' is that of a segment of the {}node {}{}; choose another "
                  "local_segment_name, or stop that node",
                  by.segment, stays ? "live " : "", metadata::DescribeHolder(*by.lease), but));
}

Error StillSo(const Status& status) {
  return Conflict(status.error().context + "; still so when startup_timeout_ms was over");
}

}  // namespace

struct Membership::JoinAttempt {
  std::optional<HolderAnswer> told;  // What the holder of the name said, if there is one.
  bool crowded = false;              // It has a standby already, which may go.
  Hold name = Hold::kNone;           // Of a segment, by another node.
};

Status Membership::TryJoin(const LeaseRecord& record, bool succeed, const AskHolder& ask,
                           JoinAttempt* attempt) {
  MC_TRY(const MembershipChanges all, metadata_.ReadChanges(0));
  const LeaseRecord* const holder = HolderOf(record.id.stable_id, all.leases);
  std::optional<uint64_t> beside;
  LeaseRecord own = record;
  bool replace = false;
  if (holder != nullptr) {
    const HolderAnswer answer = ask(*holder);
    attempt->told = answer;
    const bool alive = answer != HolderAnswer::kGone && answer != HolderAnswer::kStranger;
    // A stranger has its port by now, perhaps; then its lease will lapse.
    if ((alive && !succeed) || answer == HolderAnswer::kStranger) return HeldBy(*holder, answer);
    beside = holder->id.epoch;
    replace = answer == HolderAnswer::kGone;
    if (!replace) own.beside = holder->id.epoch;
  }
  if (const Namesake other = FindNamesake(record, all.leases, ask); other.hold >= Hold::kGoing) {
    attempt->name = other.hold;
    return NameTaken(other);
  }
  const uint64_t asked_ms = runtime_.NowMs();
  auto acquired = metadata_.Acquire(own, lease_ttl_ms(), beside, replace);
  if (!acquired && acquired.code() == ErrorCode::kConflict && holder != nullptr) {
    for (const LeaseRecord& lease : all.leases) {
      if (lease.id.stable_id != holder->id.stable_id || lease.id == holder->id) continue;
      attempt->crowded = true;
      return NoPlaceBeside(*holder, lease);
    }
  }
  if (!acquired) return std::move(acquired).error();  // A conflict here is a race: look again.
  base::MutexLock lock(mu_);
  record_ = std::move(own);
  record_.id = *acquired;
  self_name_ = record_.id.ToString();
  instance_ = record_.instance;
  state_.store(record_.state);
  lease_confirmed_ms_.store(asked_ms);
  return Ok();
}

Status Membership::Join(const LeaseRecord& record, bool succeed, uint64_t deadline_ms,
                        const AskHolder& ask) {
  bool said = false;
  uint64_t lapsed_ms = 0;  // By when a silent holder's lease is over; 0: there is none.
  while (true) {
    const uint64_t asked_ms = runtime_.NowMs();
    JoinAttempt attempt;
    Status status = TryJoin(record, succeed, ask, &attempt);
    if (status.ok()) {
      MC_RETURN_IF_ERROR(AgreeOnPolicy());
      builder_.emplace(options_.route_scope, slots_);
      MC_RETURN_IF_ERROR(FetchFirstView());
      return SettleNames(deadline_ms, ask);
    }
    const bool silent = attempt.told == HolderAnswer::kSilent && !succeed;
    if (silent && lapsed_ms == 0) lapsed_ms = asked_ms + lease_ttl_ms() + kLapseMs;
    const bool may_go = attempt.crowded || attempt.name == Hold::kGoing;
    const bool waits = silent || may_go;
    if (waits && !std::exchange(said, true)) {
      obs::LogInfo(status.error().context + "; waiting for that");
    }
    // What the record holds is wrong, or who asks: another attempt is answered like this one.
    const bool wrong = status.code() == ErrorCode::kInvalidArgument || attempt.name == Hold::kStays;
    const bool answers =
        attempt.told == HolderAnswer::kAlive || attempt.told == HolderAnswer::kLeaving;
    const bool lives = answers && !succeed;
    const bool denied = status.code() == ErrorCode::kMetadata && metadata_.Denies();
    // The last look begins when a lease that was not renewed is over.
    const bool late = runtime_.NowMs() + kJoinRetryMs >= deadline_ms && asked_ms >= lapsed_ms;
    if (late && may_go) return StillSo(status);
    if (lives || wrong || denied || late || runtime_.Interrupted()) return status;
    runtime_.SleepMs(kJoinRetryMs);
  }
}

// Two that joined at the same moment saw nothing of each other before each had its lease: of those
// that see each other now, the one with the smaller name stays. But the other one may have looked
// before our lease was there; then it goes on, and soon answers.
Status Membership::SettleNames(uint64_t deadline_ms, const AskHolder& ask) {
  std::vector<LeaseRecord> leases;
  leases.reserve(members_.size());
  for (const auto& [id, lease] : members_) leases.push_back(lease);
  const LeaseRecord own = record();
  while (true) {
    const Namesake other = FindNamesake(own, leases, ask);
    if (other.hold == Hold::kNone) return Ok();
    const bool late = runtime_.NowMs() + kJoinRetryMs >= deadline_ms || runtime_.Interrupted();
    if (other.hold != Hold::kJoining || other.lease->id < own.id || late) {
      (void)metadata_.Release(own.id, own.instance);
      return NameTaken(other);
    }
    runtime_.SleepMs(kJoinRetryMs);
    if (auto all = metadata_.ReadChanges(0); all.ok()) leases = std::move(all->leases);
  }
}

Status Membership::AgreeOnPolicy() {
  RoutePolicy wanted = options_.policy;
  const bool any_slots = wanted.slot_bits == 0;
  if (any_slots) wanted.slot_bits = kSlotBitsDefault;
  if (!IsSlotBits(wanted.slot_bits)) {
    return InvalidArgument(fmt::format("slot_bits is {}, allowed are 0 and {} to {}",
                                       wanted.slot_bits, kSlotBitsMin, kSlotBitsMax));
  }
  wanted.created_by = self_name_;
  wanted.created_at_ms = runtime_.WallMs();
  MC_TRY(const RoutePolicy policy, metadata_.PutRoutePolicyIfAbsent(wanted));
  if (any_slots) wanted.slot_bits = policy.slot_bits;
  if (policy.route_topk != wanted.route_topk || policy.route_control != wanted.route_control ||
      policy.slot_bits != wanted.slot_bits) {
    const auto text = [](const RoutePolicy& it) {
      return fmt::format("route_topk={} route_control={} slot_bits={}", it.route_topk,
                         it.route_control, it.slot_bits);
    };
    return InvalidArgument(
        fmt::format("route policy: this node asks for {}, but the cluster runs with {} (set by {})",
                    text(wanted), text(policy), policy.created_by));
  }
  slots_ = routing::Slots(policy.slot_bits);
  base::MutexLock lock(mu_);
  record_.slot_bits = policy.slot_bits;  // Told with the next renewal; nobody calls us before.
  policy_ = policy;
  return Ok();
}

void Membership::RestorePolicy() {
  std::optional<RoutePolicy> policy;
  {
    base::MutexLock lock(mu_);
    policy = policy_;
  }
  if (!policy) return;
  const auto in_force = metadata_.PutRoutePolicyIfAbsent(*policy);
  if (!in_force || in_force->slot_bits == policy->slot_bits) return;  // Else the next node does it.
  obs::LogRateLimited(
      obs::LogLevel::kError, "membership.slots",
      fmt::format("the metadata service lost its data, and {} has founded another cluster there "
                  "with slot_bits={}; this one has slot_bits={}: they do not see each other's "
                  "keys, see docs/operations.md",
                  in_force->created_by, in_force->slot_bits, policy->slot_bits));
}

}  // namespace mooncake::node

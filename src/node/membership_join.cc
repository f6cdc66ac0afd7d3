// The part of Membership that joins: whose name it may take, and by which route policy.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "node/membership.h"
#include "obs/log.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kJoinRetryMs = 200;
// What a service may add to a lease: etcd counts in whole seconds and ends it up to one later.
constexpr uint64_t kLapseMs = 3'000;
}  // namespace

Result<std::optional<LeaseRecord>> Membership::FindHolder(const std::string& stable_id) {
  MC_TRY(MembershipChanges all, metadata_.ReadChanges(0));
  std::optional<LeaseRecord> holder;
  for (LeaseRecord& lease : all.leases) {
    if (lease.id.stable_id != stable_id) continue;
    if (!holder || holder->id.epoch < lease.id.epoch) holder = std::move(lease);
  }
  return holder;
}

Status Membership::TryJoin(const LeaseRecord& record, bool succeed, const AskHolder& ask,
                           std::optional<HolderAnswer>* told) {
  MC_TRY(std::optional<LeaseRecord> holder, FindHolder(record.id.stable_id));
  std::optional<uint64_t> beside;
  LeaseRecord own = record;
  bool replace = false;
  if (holder) {
    const HolderAnswer answer = ask(*holder);
    *told = answer;
    if (answer == HolderAnswer::kAlive && !succeed) {
      return Conflict(fmt::format(
          "stable_id '{}' is held by the live node {} at {}; choose another stable_id, stop "
          "that node, or start this one with initial_state=standby to succeed it",
          record.id.stable_id, holder->id.ToString(), holder->endpoint));
    }
    if (answer == HolderAnswer::kSilent && !succeed) {
      return Conflict(
          fmt::format("stable_id '{}': its holder {} at {} does not answer, and its lease has not "
                      "lapsed yet",
                      record.id.stable_id, holder->id.ToString(), holder->endpoint));
    }
    // Or somebody else has its port by now; then its lease will lapse.
    if (answer == HolderAnswer::kStranger) {
      return Conflict(
          fmt::format("stable_id '{}': at the address of its holder {}, {}, is a node "
                      "with another cluster_secret",
                      record.id.stable_id, holder->id.ToString(), holder->endpoint));
    }
    beside = holder->id.epoch;
    replace = answer == HolderAnswer::kGone;
    if (!replace) own.beside = holder->id.epoch;
  }
  const uint64_t asked_ms = runtime_.NowMs();
  auto acquired = metadata_.Acquire(own, lease_ttl_ms(), beside, replace);
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
  uint64_t lapsed_ms = 0;  // By when a silent holder's lease is over; 0: there is none.
  while (true) {
    const uint64_t asked_ms = runtime_.NowMs();
    std::optional<HolderAnswer> told;
    Status status = TryJoin(record, succeed, ask, &told);
    if (status.ok()) {
      MC_RETURN_IF_ERROR(AgreeOnPolicy());
      builder_.emplace(options_.route_scope, slots_);
      return FetchFirstView();
    }
    if (told == HolderAnswer::kSilent && !succeed && lapsed_ms == 0) {
      lapsed_ms = asked_ms + lease_ttl_ms() + kLapseMs;
      obs::LogInfo(status.error().context + "; waiting for that");
    }
    // What the record holds is wrong, or who asks: another attempt is answered like this one.
    const bool wrong = status.code() == ErrorCode::kInvalidArgument;
    const bool lives = told == HolderAnswer::kAlive && !succeed;
    const bool denied = status.code() == ErrorCode::kMetadata && metadata_.Denies();
    // The last look begins when a lease that was not renewed is over.
    const bool late = runtime_.NowMs() + kJoinRetryMs >= deadline_ms && asked_ms >= lapsed_ms;
    if (lives || wrong || denied || late || runtime_.Interrupted()) return status;
    runtime_.SleepMs(kJoinRetryMs);
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

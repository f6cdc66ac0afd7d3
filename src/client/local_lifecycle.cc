// The part of LocalStore that looks at and changes what the node offers.
#include <fmt/format.h>

#include <algorithm>

#include "client/local_store.h"
#include "metadata/records.h"

namespace mooncake::client {

namespace {

// In 1973. Nobody waits for so long, so what is below counts from now.
constexpr uint64_t kTimesSinceMs = 100'000'000'000;

Error NotOpen() { return InvalidState("the store is not set up, or it has been closed"); }

void CountLifecycle(Metrics& metrics, const char* action, ErrorCode code) {
  const Labels labels{{"action", action}, {"result", code == ErrorCode::kOk ? "ok" : "error"}};
  metrics.GetCounter("segment_lifecycle_total", labels).Increment();
}

// Of a segment of a node in that state.
SegmentInfo InfoOf(const std::string& owner, const std::string& endpoint, NodeState node,
                   const SegmentRecord& record) {
  SegmentInfo info;
  info.owner = owner;
  info.segment_name = record.name;
  info.transport_endpoint = endpoint;
  info.capacity_bytes = record.capacity_bytes;
  info.used_bytes = record.used_bytes;
  const bool draining = record.state == NodeState::kDraining || node == NodeState::kDraining;
  info.state = draining ? "Draining" : "Active";
  info.alignment_bytes = allocator::kAlignment;
  info.tags = {"dram"};
  return info;
}

}  // namespace

std::vector<SegmentInfo> LocalStore::ListSegments(bool all) {
  std::vector<SegmentInfo> segments;
  const NodeState own = core_.membership.state();
  for (const node::SegmentStats& stats : core_.extents.Stats()) {
    if (stats.state == NodeState::kOffline) continue;  // Retired.
    segments.push_back(InfoOf(NodeName(), Hostname(), own,
                              {stats.name, stats.capacity_bytes, stats.used_bytes, stats.state}));
  }
  base::Gate::Pass pass(parts_.node->gate());
  if (!all || !pass) return segments;
  for (const LeaseRecord& lease : parts_.node->ReadMembers()) {
    const std::string owner = lease.id.ToString();
    if (owner == NodeName()) continue;
    for (const SegmentRecord& record : lease.segments) {
      if (record.state == NodeState::kOffline) continue;
      segments.push_back(InfoOf(owner, lease.endpoint, lease.state, record));
    }
  }
  return segments;
}

Status LocalStore::SetState(std::string_view text) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  MC_TRY(const NodeState state, metadata::ParseNodeState(text));
  return parts_.node->SetState(state);
}

Result<SegmentInfo> LocalStore::ExpandLocalMemory(uint64_t bytes) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  const auto expanded = parts_.node->ExpandMemory(bytes);
  CountLifecycle(*parts_.metrics, "expand", expanded.code());
  MC_TRY(const node::SegmentStats stats, expanded);
  return InfoOf(NodeName(), Hostname(), core_.membership.state(),
                {stats.name, stats.capacity_bytes, stats.used_bytes, stats.state});
}

Status LocalStore::DrainSegment(const std::string& name) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  Status drained = parts_.node->DrainSegment(name);
  CountLifecycle(*parts_.metrics, "drain", drained.code());
  return drained;
}

Result<bool> LocalStore::RetireSegment(const std::string& name) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  Result<bool> retired = parts_.node->RetireSegment(name);
  CountLifecycle(*parts_.metrics, "retire", retired.code());
  return retired;
}

Result<uint64_t> LocalStore::EvacuateOwnedReplicas() { return EvacuateUntil(Deadline()); }

Result<uint64_t> LocalStore::EvacuateUntil(uint64_t deadline_ms) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  MC_TRY(const node::EvacuationResult result, parts_.node->EvacuateAll({}, deadline_ms));
  if (result.remaining_objects == 0) return result.moved;
  return NoSpace(fmt::format(
      "not enough writable placement targets: {} replicas moved, {} objects of {} bytes remain "
      "({})",
      result.moved, result.remaining_objects, result.remaining_bytes,
      result.last_error.ToString()));
}

Result<uint64_t> LocalStore::SetTenantPolicy(std::string_view tenant, const TenantPolicy& policy,
                                             std::optional<uint64_t> expected_version) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  return parts_.node->SetTenantPolicy(tenant, policy, expected_version);
}

Result<TenantPolicyRecord> LocalStore::GetTenantPolicy(std::string_view tenant) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  return parts_.node->GetTenantPolicy(tenant);
}

Status LocalStore::DeleteTenantPolicy(std::string_view tenant,
                                      std::optional<uint64_t> expected_version) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  return parts_.node->DeleteTenantPolicy(tenant, expected_version);
}

Result<HandoffPlan> LocalStore::PlanHandoff(std::optional<uint64_t> successor_epoch,
                                            std::optional<uint64_t> deadline_ms) {
  base::Gate::Pass pass(parts_.node->gate());
  if (!pass) return NotOpen();
  const uint64_t wall_ms = parts_.runtime->WallMs();
  uint64_t wait_ms = deadline_ms.value_or(std::min<uint64_t>(config_.lease_ttl_ms, 30'000));
  if (wait_ms >= kTimesSinceMs) {
    if (wait_ms <= wall_ms) {
      return InvalidArgument(
          fmt::format("deadline_ms {}: expected a time after now, {}, in milliseconds since 1970",
                      wait_ms, wall_ms));
    }
    wait_ms -= wall_ms;
  }
  MC_TRY(const NodeId successor,
         parts_.node->PlanHandoff(successor_epoch, parts_.runtime->NowMs() + wait_ms));
  HandoffPlan plan;
  plan.stable_id = successor.stable_id;
  plan.from_epoch = core_.membership.self().epoch;
  plan.to_epoch = successor.epoch;
  plan.deadline_ms = wall_ms + wait_ms;
  return plan;
}

}  // namespace mooncake::client

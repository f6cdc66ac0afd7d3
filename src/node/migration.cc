#include "node/migration.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "node/placed_write.h"
#include "node/query_op.h"
#include "node/read_op.h"
#include "runtime/mapped_memory.h"

namespace mooncake::node {

namespace {

constexpr int kConflictTriesMax = 4;

// What is left to do for an order, given the key's route.
struct Plan {
  bool done = false;
  bool source_found = false;
  std::string source_owner;  // "stable_id:epoch"; empty: in no segment of that name.
  Relocation relocation;
};

class Planner {
 public:
  Planner(Core& core, const MigrationOrder& order)
      : core_(core), order_(order), view_(core.view()) {}

  Result<Plan> Make(const Route& route) {
    Plan plan;
    plan.relocation.version = route.version;
    std::vector<bool> held(order_.target_segments.size());
    for (const Place& place : route.replicas) {
      const std::string segment = SegmentOf(place);
      const auto target =
          std::find(order_.target_segments.begin(), order_.target_segments.end(), segment);
      if (target != order_.target_segments.end()) {
        held[static_cast<size_t>(target - order_.target_segments.begin())] = true;
      }
      const bool source = segment == order_.source_segment;
      if (source) {
        plan.source_found = true;
        plan.source_owner = core_.names.NameOf(place.owner);
      }
      if (!source || !order_.move) plan.relocation.keep.push_back(place);
    }
    for (size_t i = 0; i < held.size(); ++i) {
      if (!held[i]) MC_RETURN_IF_ERROR(AddTarget(order_.target_segments[i], &plan.relocation));
    }
    plan.done = plan.relocation.targets.empty() && !(order_.move && plan.source_found);
    plan.relocation.all = true;
    plan.relocation.copies = static_cast<uint32_t>(plan.relocation.targets.size());
    return plan;
  }

 private:
  // Empty: the owner, or the segment, is not in the view.
  std::string SegmentOf(const Place& place) const {
    const routing::NodeIndex node = view_->FindName(core_.names.NameOf(place.owner));
    if (node == routing::kNoNode) return {};
    const auto& segments = view_->node(node).lease.segments;
    return place.segment < segments.size() ? segments[place.segment].name : std::string();
  }

  Status AddTarget(const std::string& segment, Relocation* relocation) const {
    for (const routing::ViewNode& node : view_->nodes()) {
      if (!node.storage || !Offers(node.lease, segment)) continue;
      const std::string name = node.lease.id.ToString();
      for (const Place& kept : relocation->keep) {
        if (core_.names.NameOf(kept.owner) == name) {
          return InvalidState(fmt::format(
              "target segment '{}': its node {} already holds the value", segment, name));
        }
      }
      for (const Relocation::Target& other : relocation->targets) {
        if (other.node == node.lease.id) {
          return InvalidState(fmt::format("target segments '{}' and '{}' are both of node {}",
                                          other.segment, segment, name));
        }
      }
      relocation->targets.push_back({node.lease.id, segment});
      return Ok();
    }
    return NotFound(fmt::format("target segment '{}': no active storage node offers it", segment));
  }

  static bool Offers(const LeaseRecord& lease, const std::string& segment) {
    return std::any_of(lease.segments.begin(), lease.segments.end(), [&](const auto& record) {
      return record.name == segment && record.state == NodeState::kActive;
    });
  }

  Core& core_;
  const MigrationOrder& order_;
  const ViewPtr view_;
};

Result<KeyRef> RefOf(Core& core, const MigrationOrder& order) {
  const auto scope = core.scopes.Intern(order.scope);
  if (!scope) return InvalidArgument("scope: too large, or this node knows too many");
  return MakeKeyRef(*scope, order.key);
}

Result<Plan> MakePlan(Core& core, const MigrationOrder& order, const KeyRef& ref,
                      uint64_t deadline_ms, Route* route) {
  MC_TRY(*route, std::move(FindRoutes(core, {&ref, 1}, deadline_ms)[0]));
  return Planner(core, order).Make(*route);
}

// The bytes of a value: pinned where they lie in this node, else a copy.
struct Value {
  ExtentPin pin;
  MappedMemory memory;
  ConstBytes bytes;
};

Result<Value> ReadValue(Core& core, const KeyRef& ref, uint64_t size, uint64_t deadline_ms) {
  Value value;
  Error no_memory;
  ReadItem item{ref, {}, size, 0};
  node::ReadRequest request;
  request.items = {&item, 1};
  request.deadline_ms = deadline_ms;
  request.allocate = [&](size_t, uint64_t found) -> std::optional<MutableBytes> {
    if (found != size) return std::nullopt;  // Overwritten meanwhile.
    if (size == 0) return MutableBytes();
    auto memory = MappedMemory::Map(size, 0);
    if (!memory.ok()) {
      no_memory = std::move(memory).error();
      return std::nullopt;
    }
    value.memory = *std::move(memory);
    return value.memory.bytes();
  };
  request.adopt = [&](size_t, ExtentPin pin) { value.pin = std::move(pin); };
  const Result<uint64_t> read = std::move(ReadValues(core, request)[0]);
  if (no_memory.code != ErrorCode::kOk) return no_memory;
  if (!read.ok()) return read.error();
  if (*read != size) return Conflict("the value was overwritten");
  value.bytes = value.pin ? ConstBytes(value.pin->data()) : ConstBytes(value.memory.bytes());
  return value;
}

Status CarryOut(Core& core, const KeyRef& ref, const Route& route, const Plan& plan,
                uint64_t deadline_ms) {
  MC_TRY(const Value value, ReadValue(core, ref, route.size, deadline_ms));
  ReplicateConfig policy;
  policy.with_soft_pin = route.soft_pin;
  WriteOptions write;
  write.replicate = &policy;
  write.deadline_ms = deadline_ms;
  const WriteItem item{ref, {&value.bytes, 1}, route.size, &plan.relocation};
  std::vector<Status> statuses(1);
  PlacedWrite(core, {&item, 1}, write, false).Run({0}, &statuses);
  return std::move(statuses[0]);
}

Error NoSource(const MigrationOrder& order) {
  return NotFound(
      fmt::format("source segment '{}': holds no replica of the key", order.source_segment));
}

}  // namespace

Status CheckOrder(const MigrationOrder& order) {
  const auto& targets = order.target_segments;
  if (order.key.empty()) return InvalidArgument("key: empty");
  if (order.key.size() > kKeySizeMax) {
    return InvalidArgument(
        fmt::format("key: {} bytes, at most {} allowed", order.key.size(), kKeySizeMax));
  }
  if (order.source_segment.empty()) return InvalidArgument("source_segment: empty");
  if (order.move && targets.size() != 1) {
    return InvalidArgument(
        fmt::format("target_segments: {} given, a move takes exactly one", targets.size()));
  }
  if (targets.empty() || targets.size() > kMigrationTargetsMax) {
    return InvalidArgument(fmt::format("target_segments: {} given, expected 1 to {}",
                                       targets.size(), kMigrationTargetsMax));
  }
  size_t longest = order.source_segment.size();
  bool text = base::IsUtf8(order.source_segment);
  for (const std::string& target : targets) {
    longest = std::max(longest, target.size());
    text = text && base::IsUtf8(target);
  }
  if (!text) return InvalidArgument("segment name: not UTF-8");
  if (longest > kSegmentNameMax) {
    return InvalidArgument(
        fmt::format("segment name of {} bytes, at most {} allowed", longest, kSegmentNameMax));
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].empty()) return InvalidArgument("target_segments: an empty name");
    if (targets[i] == order.source_segment) {
      return InvalidArgument(
          fmt::format("target_segments: '{}' is the source segment", targets[i]));
    }
    if (std::find(targets.begin(), targets.begin() + static_cast<std::ptrdiff_t>(i), targets[i]) !=
        targets.begin() + static_cast<std::ptrdiff_t>(i)) {
      return InvalidArgument(fmt::format("target_segments: '{}' is named twice", targets[i]));
    }
  }
  return Ok();
}

Status Migrate(Core& core, const MigrationOrder& order, uint64_t deadline_ms) {
  MC_RETURN_IF_ERROR(CheckOrder(order));
  MC_TRY(const KeyRef ref, RefOf(core, order));
  Status status = Ok();
  for (int attempt = 0; attempt < kConflictTriesMax; ++attempt) {
    Route route;
    MC_TRY(const Plan plan, MakePlan(core, order, ref, deadline_ms, &route));
    if (plan.done) return Ok();
    if (!plan.source_found) return NoSource(order);
    status = CarryOut(core, ref, route, plan, deadline_ms);
    if (status.code() != ErrorCode::kConflict && status.code() != ErrorCode::kTooSmall) break;
  }
  if (status.ok()) core.metrics.GetCounter("migrated_replica_total", {}).Increment();
  return status;
}

Result<std::string> SourceOwner(Core& core, const MigrationOrder& order, uint64_t deadline_ms) {
  MC_TRY(const KeyRef ref, RefOf(core, order));
  Route route;
  MC_TRY(Plan plan, MakePlan(core, order, ref, deadline_ms, &route));
  if (plan.source_found) return std::move(plan.source_owner);
  if (plan.done) return core.membership.self_name();
  return NoSource(order);
}

Result<bool> IsMigrated(Core& core, const MigrationOrder& order, uint64_t deadline_ms) {
  MC_TRY(const KeyRef ref, RefOf(core, order));
  Route route;
  MC_TRY(const Plan plan, MakePlan(core, order, ref, deadline_ms, &route));
  return plan.done;
}

}  // namespace mooncake::node

#include "node/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "metadata/records.h"
#include "node/put_op.h"

namespace mooncake::node {

namespace {

// More than the copies wanted, so that full or dead owners have stand-ins, and several copies
// find different hosts.
constexpr size_t kSpareCandidates = 8;
constexpr size_t kSparesOfSeveral = 32;

// Of a candidate, which is no better than its segment.
NodeState StateOf(Core& core, const routing::ClusterView& view, const Candidate& candidate) {
  const bool own = candidate.node == routing::kNoNode;
  const NodeState node = own ? core.membership.state() : view.node(candidate.node).lease.state;
  if (node != NodeState::kActive || candidate.segment.empty()) return node;
  if (own) {
    for (const SegmentStats& segment : core.extents.Stats()) {
      if (segment.name == candidate.segment) return segment.state;
    }
    return node;
  }
  for (const SegmentRecord& segment : view.node(candidate.node).lease.segments) {
    if (segment.name == candidate.segment) return segment.state;
  }
  return node;
}

class Chooser {
 public:
  Chooser(Core& core, const routing::ClusterView& view)
      : core_(core),
        view_(view),
        self_(view.FindName(core.membership.self_name())),
        own_storage_(core.extents.has_segments()) {}

  // False: it cannot be one.
  bool Add(routing::NodeIndex node, std::string segment) {
    if (node == routing::kNoNode) return false;
    if (node == self_) return AddSelf(std::move(segment));
    if (!view_.node(node).storage) return false;
    Push(node, std::move(segment));
    return true;
  }

  bool AddSelf(std::string segment) {
    if (own_storage_) Push(routing::kNoNode, std::move(segment));
    return own_storage_;
  }

  // Whether that segment of the node takes values of that size, as long as it has room.
  bool Takes(routing::NodeIndex node, const std::string& segment, uint64_t size) const {
    const Candidate candidate{node == self_ ? routing::kNoNode : node, segment};
    if (StateOf(core_, view_, candidate) != NodeState::kActive) return false;
    const auto small = [&](const auto& known) {
      return known.name == segment && known.capacity_bytes < size;
    };
    if (node == self_) return std::ranges::none_of(core_.extents.Stats(), small);
    return std::ranges::none_of(view_.node(node).lease.segments, small);
  }

  bool IsOwnName(const std::string& name) const {
    const std::string& endpoint = core_.membership.record().endpoint;
    return name == endpoint || name == endpoint.substr(0, endpoint.rfind(':')) ||
           name == core_.membership.self_name();
  }

  routing::NodeIndex NodeOfSegment(const std::string& segment) const {
    for (size_t i = 0; i < view_.nodes().size(); ++i) {
      const auto index = static_cast<routing::NodeIndex>(i);
      for (const SegmentRecord& record : view_.node(index).lease.segments) {
        if (record.name == segment) return index;
      }
    }
    // One that this node has just added is not in the view yet.
    const std::vector<SegmentStats> own = core_.extents.Stats();
    const bool fresh = std::any_of(own.begin(), own.end(), [&](const SegmentStats& stats) {
      return stats.name == segment && stats.state == NodeState::kActive;
    });
    return fresh ? self_ : routing::kNoNode;
  }

  std::vector<Candidate> Take() { return std::move(candidates_); }
  size_t size() const { return candidates_.size(); }

 private:
  void Push(routing::NodeIndex node, std::string segment) {
    for (const Candidate& known : candidates_) {
      if (known.node == node) return;
    }
    candidates_.push_back({node, std::move(segment)});
  }

  Core& core_;
  const routing::ClusterView& view_;
  const routing::NodeIndex self_;
  const bool own_storage_;
  std::vector<Candidate> candidates_;
};

// What no view can satisfy.
Error CheckPolicy(const ReplicateConfig& replicate) {
  if (replicate.replica_num == 0) return InvalidState("replica_num 0: expected at least 1");
  std::set<std::string_view> names;
  for (const std::string& segment : replicate.preferred_segments) {
    if (names.insert(segment).second) continue;
    return Conflict(fmt::format("preferred_segment '{}' is named twice", segment));
  }
  return {};
}

// An owner that was asked for and is none: others take its place.
void CountSkipped(Core& core, uint64_t count = 1) {
  if (count == 0) return;
  core.metrics
      .GetCounter("preferred_segment_skip_total",
                  {{"source", "request"}, {"reason", "unavailable"}})
      .Add(count);
}

Error AddPreferredSegments(Core& core, const ReplicateConfig& replicate, uint64_t size,
                           Chooser* chooser) {
  for (const std::string& segment : replicate.preferred_segments) {
    if (chooser->IsOwnName(segment)) {
      if (chooser->AddSelf({})) continue;
    } else {
      const routing::NodeIndex node = chooser->NodeOfSegment(segment);
      // A hint that cannot be followed leaves its node a candidate with its other segments.
      const bool taken = node != routing::kNoNode &&
                         (!replicate.with_soft_pin || chooser->Takes(node, segment, size));
      if (taken && chooser->Add(node, segment)) continue;
    }
    if (!replicate.with_soft_pin) {
      return NotFound(fmt::format("preferred_segment '{}': no storage node offers it", segment));
    }
    CountSkipped(core);
  }
  return {};
}

void AddPreferredOwners(Core& core, const routing::ClusterView& view,
                        const ReplicateConfig& replicate, Chooser* chooser) {
  for (const std::string& owner : replicate.preferred_storage_owners) {
    if (!chooser->Add(view.FindName(owner), {})) CountSkipped(core);
  }
}

// Without routed writes: this node is the only candidate, and what asks for others is refused where
// it is a must, or counted as skipped. Copies that cannot be are counted when the value is written.
void PlaceOwn(Core& core, const routing::ClusterView& view, const ReplicateConfig* replicate,
              uint64_t size, Placement* placement) {
  Chooser chooser(core, view);
  if (replicate != nullptr) {
    placement->refused = AddPreferredSegments(core, *replicate, size, &chooser);
    if (placement->refused.code != ErrorCode::kOk) return;
    const auto asked = static_cast<uint32_t>(chooser.size());
    const std::vector<Candidate> named = chooser.Take();
    for (const Candidate& candidate : named) {
      if (candidate.node != routing::kNoNode) continue;
      chooser.AddSelf(candidate.segment);
      placement->hard = replicate->with_soft_pin ? 0 : 1;
    }
    const uint32_t elsewhere = asked - static_cast<uint32_t>(chooser.size());
    if (!replicate->with_soft_pin && placement->hard < std::min(placement->copies, asked)) {
      placement->refused = NotFound(
          "a preferred_segment is on another node, and routed_writes=False keeps values "
          "on this one");
      return;
    }
    if (replicate->with_soft_pin) CountSkipped(core, elsewhere);
    const auto foreign = [&](const std::string& owner) {
      return view.FindName(owner) != view.FindName(core.membership.self_name());
    };
    CountSkipped(core, static_cast<uint64_t>(
                           std::count_if(replicate->preferred_storage_owners.begin(),
                                         replicate->preferred_storage_owners.end(), foreign)));
  }
  chooser.AddSelf({});
  placement->preferred = placement->hard;
  placement->candidates = chooser.Take();
}

// Of the candidates from `named` on, which were not asked for by name.
void PutFullOnesLast(const routing::ClusterView& view, uint64_t size, size_t named, RoomPlan* rooms,
                     Placement* placement) {
  std::vector<Candidate>& candidates = placement->candidates;
  const auto begin = candidates.begin() + static_cast<ptrdiff_t>(named);
  std::vector<Candidate> full;
  auto next = begin;
  for (auto candidate = begin; candidate != candidates.end(); ++candidate) {
    if (!rooms->Has(view, candidate->node, size)) {
      full.push_back(std::move(*candidate));
    } else if (auto place = next++; place != candidate) {
      *place = std::move(*candidate);
    }
  }
  std::move(full.begin(), full.end(), next);
  // prefer_local is none where this node is full.
  const bool own_first = begin != candidates.end() && begin->node == routing::kNoNode;
  if (!own_first) placement->preferred = static_cast<uint32_t>(named);
  const size_t copies = std::min<size_t>(placement->copies, candidates.size());
  for (size_t c = 0; c < copies; ++c) rooms->Take(view, candidates[c].node, size);
}

}  // namespace

std::string HostOf(Core& core, const routing::ClusterView& view, routing::NodeIndex node) {
  const routing::NodeIndex index =
      node == routing::kNoNode ? view.FindName(core.membership.self_name()) : node;
  if (index == routing::kNoNode) return {};
  return view.node(index).Host();
}

Error NoRoom(Core& core, const routing::ClusterView& view) {
  if (!core.options.routed_writes) {
    const bool active = core.membership.state() == NodeState::kActive;
    return NoSpace(active ? "this node has no room" : "this node takes no new values: not active");
  }
  if (view.OnlySuspectsStore(core.options.pool)) {
    return TransportError("all storage nodes are suspect, and nobody else takes values");
  }
  const bool anybody = std::any_of(view.nodes().begin(), view.nodes().end(),
                                   [](const routing::ViewNode& node) { return node.storage; });
  return NoSpace(anybody ? "no storage node has room"
                         : "no storage node is active, and others take no new values");
}

Placement PlaceKey(Core& core, const routing::ClusterView& view, const WriteItem& item,
                   const ReplicateConfig* replicate, bool authority_last, RoomPlan* rooms) {
  const KeyRef& ref = item.ref;
  Placement placement;
  if (replicate != nullptr) placement.refused = CheckPolicy(*replicate);
  if (placement.refused.code != ErrorCode::kOk) return placement;
  placement.copies =
      replicate != nullptr ? replicate->replica_num : std::max(1u, core.options.replica_count);
  if (!core.options.routed_writes) {
    PlaceOwn(core, view, replicate, item.size, &placement);
    return placement;
  }
  Chooser chooser(core, view);
  size_t named = 0;
  if (replicate != nullptr) {
    placement.refused = AddPreferredSegments(core, *replicate, item.size, &chooser);
    if (placement.refused.code != ErrorCode::kOk) return placement;
    if (!replicate->with_soft_pin) placement.hard = static_cast<uint32_t>(chooser.size());
    placement.preferred = placement.hard;
    if (placement.hard > 0 && placement.hard >= placement.copies) {
      placement.candidates = chooser.Take();
      return placement;
    }
    AddPreferredOwners(core, view, *replicate, &chooser);
    named = chooser.size();
    if (replicate->prefer_local || replicate->prefer_alloc_in_same_node) chooser.AddSelf({});
  }
  placement.preferred = static_cast<uint32_t>(chooser.size());
  const std::string& pool = core.options.pool;
  const auto ranks = view.RanksOf(ref.hash);
  const bool in_pool =
      !ranks.empty() && (pool.empty() || view.node(ranks[0]).Label("pool") == pool);
  if (!authority_last && in_pool) chooser.Add(ranks[0], {});
  const size_t spares = placement.copies > 1 ? kSparesOfSeveral : kSpareCandidates;
  for (routing::NodeIndex node : view.PlacementOrder(ref.hash, pool, placement.copies + spares)) {
    if (authority_last && !ranks.empty() && node == ranks[0]) continue;
    chooser.Add(node, {});
  }
  // It may be another one, by this view, than the one that had no room.
  if (authority_last && in_pool) chooser.Add(ranks[0], {});
  placement.candidates = chooser.Take();
  if (rooms != nullptr && MaySpill(core, view, ref.hash)) {
    PutFullOnesLast(view, item.size, named, rooms, &placement);
  }
  return placement;
}

Placement PlaceRelocation(Core& core, const routing::ClusterView& view,
                          const Relocation& relocation) {
  const NodeId self = core.membership.self();
  const size_t targets = relocation.targets.size();
  Placement placement;
  placement.copies = static_cast<uint32_t>(std::min<size_t>(relocation.copies, targets));
  if (relocation.all) placement.hard = placement.copies;
  const Relocation::Target* gone = nullptr;
  for (const Relocation::Target& target : relocation.targets) {
    const bool own = target.node == self;
    const routing::NodeIndex node = own ? routing::kNoNode : view.Find(target.node);
    if (own || (node != routing::kNoNode && view.node(node).storage)) {
      placement.candidates.push_back({node, target.segment});
    } else {
      gone = &target;
    }
  }
  const size_t needed = relocation.all ? targets : std::min<size_t>(targets, 1);
  if (placement.candidates.size() < needed) {
    placement.refused = Conflict(
        fmt::format("target node {} is no active storage node any more", gone->node.ToString()));
  }
  return placement;
}

bool FitsAnywhere(Core& core, const routing::ClusterView& view, uint64_t size) {
  if (size <= core.extents.LargestSegment()) return true;
  for (const routing::ViewNode& node : view.nodes()) {
    for (const SegmentRecord& segment : node.lease.segments) {
      if (size <= segment.capacity_bytes) return true;
    }
  }
  return false;
}

Error InactiveChoice(Core& core, const routing::ClusterView& view, const Placement& placement) {
  for (uint32_t c = 0; c < placement.hard; ++c) {
    const Candidate& candidate = placement.candidates[c];
    const NodeState state = StateOf(core, view, candidate);
    if (state == NodeState::kActive) continue;
    const std::string segment =
        candidate.segment.empty() ? "of this node" : fmt::format("'{}'", candidate.segment);
    return NoSpace(fmt::format("the preferred_segment {} is {}: it takes no new values", segment,
                               metadata::NodeStateName(state)));
  }
  return {};
}

}  // namespace mooncake::node

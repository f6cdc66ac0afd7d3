#include "node/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>

namespace mooncake::node {

namespace {

// More than the copies wanted, so that full or dead owners have stand-ins.
constexpr size_t kSpareCandidates = 8;

class Chooser {
 public:
  Chooser(Core& core, const routing::ClusterView& view)
      : core_(core),
        view_(view),
        self_(view.FindName(core.membership.self_name())),
        own_storage_(core.extents.has_segments()) {}

  void Add(routing::NodeIndex node, std::string segment) {
    if (node == routing::kNoNode) return;
    if (node == self_) return AddSelf(std::move(segment));
    if (!view_.node(node).storage) return;
    Push(node, std::move(segment));
  }

  void AddSelf(std::string segment) {
    if (own_storage_) Push(routing::kNoNode, std::move(segment));
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
    return routing::kNoNode;
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

Error AddPreferredSegments(Metrics& metrics, const ReplicateConfig& replicate, Chooser* chooser) {
  for (const std::string& segment : replicate.preferred_segments) {
    const size_t before = chooser->size();
    if (chooser->IsOwnName(segment)) {
      chooser->AddSelf({});
    } else {
      chooser->Add(chooser->NodeOfSegment(segment), segment);
    }
    if (chooser->size() == before && !replicate.with_soft_pin) {
      return NotFound(fmt::format("preferred_segment '{}': no storage node offers it", segment));
    }
    if (chooser->size() == before) {
      metrics
          .GetCounter("preferred_segment_skip_total",
                      {{"source", "request"}, {"reason", "not_offered"}})
          .Increment();
    }
  }
  return {};
}

}  // namespace

Placement PlaceKey(Core& core, const routing::ClusterView& view, const KeyRef& ref,
                   const ReplicateConfig* replicate, bool skip_authority) {
  Placement placement;
  if (replicate != nullptr) placement.refused = CheckPolicy(*replicate);
  if (placement.refused.code != ErrorCode::kOk) return placement;
  placement.copies =
      replicate != nullptr ? replicate->replica_num : std::max(1u, core.options.replica_count);
  Chooser chooser(core, view);
  if (!core.options.routed_writes) {
    chooser.AddSelf({});
    placement.copies = 1;
    placement.candidates = chooser.Take();
    return placement;
  }
  if (replicate != nullptr) {
    placement.refused = AddPreferredSegments(core.metrics, *replicate, &chooser);
    if (placement.refused.code != ErrorCode::kOk) return placement;
    (replicate->with_soft_pin ? placement.soft : placement.hard) =
        static_cast<uint32_t>(chooser.size());
    if (placement.hard > 0 && placement.hard >= placement.copies) {
      placement.candidates = chooser.Take();
      return placement;
    }
    for (const std::string& owner : replicate->preferred_storage_owners) {
      chooser.Add(view.FindName(owner), {});
    }
    if (replicate->prefer_local || replicate->prefer_alloc_in_same_node) chooser.AddSelf({});
  }
  const std::string& pool = core.options.pool;
  const auto ranks = view.Ranks(ref.slot());
  if (!skip_authority && !ranks.empty() &&
      (pool.empty() || view.node(ranks[0]).Label("pool") == pool)) {
    chooser.Add(ranks[0], {});
  }
  for (routing::NodeIndex node :
       view.PlacementOrder(ref.hash, pool, placement.copies + kSpareCandidates)) {
    if (skip_authority && !ranks.empty() && node == ranks[0]) continue;
    chooser.Add(node, {});
  }
  placement.candidates = chooser.Take();
  return placement;
}

}  // namespace mooncake::node

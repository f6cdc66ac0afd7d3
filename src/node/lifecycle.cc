// The part of Node that changes what it offers: segments, draining, handing over.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "base/segment_limits.h"
#include "node/node.h"
#include "obs/log.h"

namespace mooncake::node {

namespace {

constexpr uint64_t kHandoffPollMs = 500;
constexpr uint64_t kSuccessorPollMs = 100;
constexpr uint64_t kExpandedMs = 1'500;  // To see the new segment in the own view.

std::string HandoffName(const std::string& stable_id) { return "handoff/" + stable_id; }

// "<from epoch> <to epoch> <deadline, wall clock ms>"
std::string HandoffText(uint64_t from, uint64_t to, uint64_t deadline_wall_ms) {
  return fmt::format("{} {} {}", from, to, deadline_wall_ms);
}

struct Handoff {
  uint64_t from = 0;
  uint64_t to = 0;
  uint64_t deadline_wall_ms = 0;
};

std::optional<Handoff> ReadHandoff(const std::string& text) {
  Handoff handoff;
  const char* at = text.data();
  const char* end = text.data() + text.size();
  for (uint64_t* number : {&handoff.from, &handoff.to, &handoff.deadline_wall_ms}) {
    while (at < end && *at == ' ') ++at;
    const auto parsed = std::from_chars(at, end, *number);
    if (parsed.ec != std::errc()) return std::nullopt;
    at = parsed.ptr;
  }
  return handoff;
}

// Over whatever it says now.
Status WriteDocument(MetadataStore& metadata, const std::string& name, const std::string& text) {
  MC_TRY(const MetadataStore::Document current, metadata.GetDocument(name));
  MC_TRY([[maybe_unused]] const uint64_t version,
         metadata.PutDocument(name, text, current.version));
  return Ok();
}

}  // namespace

Result<SegmentStats> Node::FindSegment(const std::string& name) const {
  for (SegmentStats& stats : extents_.Stats()) {
    if (stats.name == name && stats.state != NodeState::kOffline) return std::move(stats);
  }
  return NotFound(fmt::format("segment '{}': this node has no such segment", name));
}

// Puts name segments: one that another owner has is passed over, also if that is suspect. A
// predecessor or successor has the same names.
std::string Node::NextSegmentName() const {
  std::set<std::string> taken;
  const std::vector<SegmentStats> own = extents_.Stats();
  for (const SegmentStats& stats : own) taken.insert(stats.name);
  const ViewPtr view = membership_->view();
  for (const routing::ViewNode& node : view->nodes()) {
    if (node.lease.id.stable_id == config_.stable_id) continue;
    for (const SegmentRecord& segment : node.lease.segments) {
      if (segment.state != NodeState::kOffline) taken.insert(segment.name);
    }
  }
  std::string name = config_.segment_name;
  if (own.empty() && !taken.contains(name)) return name;
  size_t number = std::max<size_t>(own.size(), 1);
  do {
    name = fmt::format("{}-ext-{}", config_.segment_name, number++);
  } while (taken.contains(name));  // Of as many as there are.
  return name;
}

Result<SegmentStats> Node::ExpandMemory(uint64_t bytes) {
  if (bytes < kSegmentSizeMin) {
    return InvalidArgument(
        fmt::format("storage_bytes is {}; allowed: at least {}", bytes, kSegmentSizeMin));
  }
  auto memory = config_.shared_segments
                    ? MappedMemory::MapShared(bytes, config_.hugepage_bytes, true)
                    : MappedMemory::Map(bytes, config_.hugepage_bytes);
  if (!memory) {
    return Error{memory.code(),
                 fmt::format("storage_bytes is {}; allowed: at least {}, and no more than this "
                             "machine can give: {}",
                             bytes, kSegmentSizeMin, memory.error().context)};
  }
  uint32_t index = 0;
  {
    base::MutexLock lock(segments_mu_);
    index = extents_.AddSegment(NextSegmentName(), *std::move(memory));
  }
  MC_RETURN_IF_ERROR(PublishSegments());
  RefreshViews(kExpandedMs, true);
  return extents_.Stats()[index];
}

Status Node::DrainSegment(const std::string& name) {
  uint32_t index = 0;
  {
    base::MutexLock lock(segments_mu_);
    MC_TRY(const SegmentStats segment, FindSegment(name));
    index = segment.index;
    const std::vector<SegmentStats> all = extents_.Stats();
    const auto active = std::count_if(all.begin(), all.end(), [](const SegmentStats& stats) {
      return stats.state == NodeState::kActive;
    });
    if (segment.state == NodeState::kActive && active == 1) {
      return InvalidState(fmt::format(
          "segment '{}' is this node's last active one; use enter_draining to drain the node",
          name));
    }
    extents_.SetSegmentState(index, NodeState::kDraining);
  }
  MC_RETURN_IF_ERROR(PublishSegments());
  const uint64_t limit_ms = ports_.runtime.NowMs() + config_.options.request_timeout_ms;
  Evacuate(*core_, {index, {}, limit_ms, [this] { return gate_.closed(); }});
  return Ok();
}

Result<bool> Node::RetireSegment(const std::string& name) {
  {
    base::MutexLock lock(segments_mu_);
    MC_TRY(const SegmentStats segment, FindSegment(name));
    if (segment.state != NodeState::kDraining) {
      return InvalidState(
          fmt::format("segment '{}' is not draining: call drain_segment first", name));
    }
    if (segment.used_bytes > 0) return false;
    extents_.SetSegmentState(segment.index, NodeState::kOffline);
    extents_.DiscardSegment(segment.index);
  }
  MC_RETURN_IF_ERROR(PublishSegments());
  return true;
}

std::vector<LeaseRecord> Node::ReadMembers() {
  std::map<NodeId, LeaseRecord> members;
  const ViewPtr view = membership_->view();
  for (const routing::ViewNode& node : view->nodes()) members[node.lease.id] = node.lease;
  auto all = ports_.metadata.ReadChanges(0);
  if (all.ok()) {
    for (LeaseRecord& lease : all->leases) members[lease.id] = std::move(lease);
  }
  std::vector<LeaseRecord> leases;
  leases.reserve(members.size());
  for (auto& [id, lease] : members) leases.push_back(std::move(lease));
  return leases;
}

Result<EvacuationResult> Node::EvacuateAll(const std::string& prefer, uint64_t deadline_ms) {
  const std::string first = prefer.empty() ? AwaitSuccessor(deadline_ms) : prefer;
  // While the metadata service is away the others do not hear of it; what is here can go all the
  // same, and takes nothing new.
  if (membership_->state() == NodeState::kActive) {
    MC_RETURN_IF_ERROR(SetState(NodeState::kDraining));
  }
  return Evacuate(*core_, {std::nullopt, first, deadline_ms, [this] { return gate_.closed(); }});
}

std::string Node::AwaitSuccessor(uint64_t deadline_ms) {
  std::optional<Successor> successor;
  {
    base::MutexLock lock(successor_mu_);
    successor = successor_;
  }
  if (!successor) return {};
  std::string name = successor->id.ToString();
  // A part of the time only: what a successor does not take still has to go elsewhere.
  const uint64_t now_ms = ports_.runtime.NowMs();
  const uint64_t patience_ms = (deadline_ms - std::min(deadline_ms, now_ms)) / 3;
  const uint64_t limit_ms = std::min(now_ms + patience_ms, successor->deadline_ms);
  while (!gate_.closed() && ports_.runtime.NowMs() < limit_ms) {
    membership_->RefreshTo(0, limit_ms);
    const ViewPtr view = membership_->view();
    const routing::NodeIndex node = view->FindName(name);
    if (node == routing::kNoNode) return {};  // It died; it was there when this was planned.
    if (view->node(node).lease.state == NodeState::kActive) return name;
    ports_.runtime.SleepMs(kSuccessorPollMs);
  }
  return {};
}

// The newest, where no epoch is asked for.
Result<NodeId> Node::FindStandby(std::optional<uint64_t> epoch) {
  membership_->RefreshTo(0, ports_.runtime.NowMs() + config_.options.takeover_wait_ms);
  const NodeId self = membership_->self();
  std::optional<NodeId> found;
  const auto look_at = [&](const LeaseRecord& lease) {
    const bool fits = lease.id.stable_id == self.stable_id && lease.id.epoch > self.epoch &&
                      lease.state == NodeState::kStandby && (!epoch || lease.id.epoch == *epoch);
    if (fits && (!found || found->epoch < lease.id.epoch)) found = lease.id;
  };
  const ViewPtr view = membership_->view();
  for (const routing::ViewNode& node : view->nodes()) look_at(node.lease);
  if (found) return *found;
  const std::string none =
      fmt::format("no live standby of stable_id '{}'{} to hand over to", self.stable_id,
                  epoch ? fmt::format(" with epoch {}", *epoch) : "");
  // One may have joined that the view does not have, as the service did not answer.
  const auto all = ports_.metadata.ReadChanges(0);
  if (!all.ok()) {
    return MetadataError(
        fmt::format("this node knows {}, and the metadata service does not answer: {}", none,
                    all.error().context));
  }
  for (const LeaseRecord& lease : all->leases) look_at(lease);
  if (!found) return InvalidState(none);
  return *found;
}

Result<NodeId> Node::PlanHandoff(std::optional<uint64_t> epoch, uint64_t deadline_ms) {
  MC_TRY(const NodeId successor, FindStandby(epoch));
  const NodeId self = membership_->self();
  const uint64_t wait_ms = deadline_ms - std::min(deadline_ms, ports_.runtime.NowMs());
  const std::string text =
      HandoffText(self.epoch, successor.epoch, ports_.runtime.WallMs() + wait_ms);
  const auto written = WriteDocument(ports_.metadata, HandoffName(self.stable_id), text);
  if (written.code() == ErrorCode::kMetadata) {
    return MetadataError(fmt::format("{} cannot be told to take over: {}", successor.ToString(),
                                     written.error().context));
  }
  MC_RETURN_IF_ERROR(written);
  {
    base::MutexLock lock(successor_mu_);
    successor_ = {successor, deadline_ms};
  }
  return successor;
}

// A standby becomes active when its predecessor says so.
void Node::WatchHandoff() {
  const NodeId self = membership_->self();
  while (!handoff_stop_->WaitUntil(ports_.runtime.NowMs() + kHandoffPollMs)) {
    if (membership_->state() != NodeState::kStandby) return;
    const auto document = ports_.metadata.GetDocument(HandoffName(self.stable_id));
    if (!document.ok() || document->text.empty()) continue;
    const std::optional<Handoff> handoff = ReadHandoff(document->text);
    const bool ours = handoff && handoff->to == self.epoch &&
                      handoff->deadline_wall_ms >= ports_.runtime.WallMs();
    if (!ours || !SetState(NodeState::kActive).ok()) continue;
    obs::LogInfo(fmt::format("promoted stable_id={} epoch={} from_epoch={} kind=HotUpgrade",
                             self.stable_id, self.epoch, handoff->from));
    return;
  }
}

}  // namespace mooncake::node

#include "node/room.h"

#include <algorithm>

#include "allocator/extent_allocator.h"
#include "base/hash.h"
#include "node/core.h"

namespace mooncake::node {

namespace {

// How many of a key's next best places are looked at.
constexpr size_t kPlacesMax = 8;
// A node whose room is a smaller part of it than this is about to be full.
constexpr uint64_t kEnoughPart = 16;
// By how much those few that have room get more than the others: a node that has come back empty
// is not to get all that is written.
constexpr double kFewGetMore = 0.75;
constexpr uint64_t kSpillSeed = 0x5b1c'e3a9'7d24'6f08;

uint64_t ShareOf(uint64_t capacity, uint32_t percent) { return capacity / 100 * percent; }

uint64_t ActiveCapacity(const routing::ViewNode& node) {
  uint64_t capacity = 0;
  for (const SegmentRecord& segment : node.lease.segments) {
    if (segment.state == NodeState::kActive) capacity += segment.capacity_bytes;
  }
  return capacity;
}

// A value is in one segment.
bool FitsOneSegment(const routing::ViewNode& node, uint64_t size) {
  return std::ranges::any_of(node.lease.segments, [&](const SegmentRecord& segment) {
    return segment.state == NodeState::kActive && size <= segment.capacity_bytes;
  });
}

}  // namespace

uint64_t RoomTable::RoomLocked(const routing::ViewNode& node, uint64_t now_ms) const {
  const uint64_t empty = ShareOf(ActiveCapacity(node), low_percent_);
  const auto known = entries_.find(node.lease.instance);
  if (known == entries_.end() || known->second.until_ms <= now_ms) return empty;
  return std::min(known->second.room, empty);
}

RoomTable::Entry* RoomTable::EntryLocked(uint32_t instance) {
  if (instance == 0) return nullptr;  // Of an older version.
  if (entries_.size() >= kEntriesMax && !entries_.contains(instance)) entries_.clear();
  return &entries_[instance];
}

void RoomTable::Told(uint32_t instance, uint64_t room, uint64_t now_ms) {
  base::MutexLock lock(mu_);
  Entry* const entry = EntryLocked(instance);
  if (entry != nullptr) *entry = {room, now_ms + kForgetMs, room, now_ms + kRecentMs, 0};
}

void RoomTable::Failed(const routing::ViewNode& node, uint64_t now_ms) {
  base::MutexLock lock(mu_);
  Entry* const entry = EntryLocked(node.lease.instance);
  if (entry != nullptr) entry->failed_until_ms = now_ms + kForgetMs;
}

bool RoomTable::Has(const routing::ViewNode& node, uint64_t size, uint64_t now_ms) const {
  if (!FitsOneSegment(node, size)) return false;
  base::MutexLock lock(mu_);
  const auto known = entries_.find(node.lease.instance);
  if (known != entries_.end() && known->second.failed_until_ms > now_ms) return false;
  return allocator::ExtentAllocator::RoundUp(size) <= RoomLocked(node, now_ms);
}

bool RoomTable::Take(const routing::ViewNode& node, uint64_t size, uint64_t now_ms) {
  if (!FitsOneSegment(node, size)) return false;
  const uint64_t bytes = allocator::ExtentAllocator::RoundUp(size);
  base::MutexLock lock(mu_);
  const uint64_t room = RoomLocked(node, now_ms);
  if (bytes > room) return false;
  Entry* const entry = EntryLocked(node.lease.instance);
  if (entry == nullptr) return true;
  entry->room = room - bytes;
  if (entry->until_ms <= now_ms) entry->until_ms = now_ms + kRecentMs;
  return true;
}

bool RoomTable::IsFullLocked(const routing::ViewNode& node, uint64_t now_ms) const {
  const auto known = entries_.find(node.lease.instance);
  if (known == entries_.end()) return false;
  const Entry& entry = known->second;
  const uint64_t enough = ShareOf(ActiveCapacity(node), low_percent_) / kEnoughPart;
  const bool full = entry.told_until_ms > now_ms && entry.told <= enough;
  return full || entry.failed_until_ms > now_ms;
}

double RoomTable::SpillShare(const routing::ClusterView& view, const std::string& pool,
                             routing::NodeIndex self, bool self_has_room, uint64_t now_ms) {
  base::MutexLock lock(mu_);
  if (now_ms < share_until_ms_ && view.revision() == share_revision_) return share_;
  size_t with_room = 0;
  size_t full = 0;
  for (size_t i = 0; i < view.nodes().size(); ++i) {
    const routing::ViewNode& node = view.nodes()[i];
    if (!node.storage || (!pool.empty() && node.Label("pool") != pool)) continue;
    const bool has = i == self ? self_has_room : !IsFullLocked(node, now_ms);
    ++(has ? with_room : full);
  }
  const double limit = kFewGetMore * static_cast<double>(with_room) / static_cast<double>(full);
  share_ = with_room >= full ? 1 : limit;
  share_until_ms_ = now_ms + kShareMs;
  share_revision_ = view.revision();
  return share_;
}

bool MaySpill(Core& core, const routing::ClusterView& view, uint64_t key_hash) {
  const routing::NodeIndex self = view.FindName(core.membership.self_name());
  const uint64_t low = ShareOf(core.extents.Usage().second, core.options.low_watermark_percent);
  const bool has = OwnRoom(core, core.options.low_watermark_percent) > low / kEnoughPart;
  const double share =
      core.rooms.SpillShare(view, core.options.pool, self, has, core.runtime.NowMs());
  return static_cast<double>(base::Mix64(key_hash ^ kSpillSeed)) < share * 0x1p64;
}

uint64_t OwnRoom(const Core& core, uint32_t percent) {
  if (core.membership.state() != NodeState::kActive) return 0;
  const auto [used, capacity] = core.extents.Usage();
  const uint64_t share = ShareOf(capacity, percent);
  return share - std::min(share, used);
}

void NoteFailed(Core& core, const routing::ViewNode& node) {
  if (core.membership.Suspected(node.lease.id)) core.rooms.Failed(node, core.runtime.NowMs());
}

bool FillsThisNode(const Core& core, uint64_t size) {
  return allocator::ExtentAllocator::RoundUp(size) >
         OwnRoom(core, core.options.high_watermark_percent);
}

bool FitsElsewhere(Core& core, const routing::ClusterView& view, const KeyRef& ref, uint64_t size,
                   routing::NodeIndex but) {
  if (!MaySpill(core, view, ref.hash)) return false;
  RoomPlan plan(core);
  const routing::NodeIndex self = view.FindName(core.membership.self_name());
  if (but == routing::kNoNode) but = self;
  const auto order = view.PlacementOrder(ref.hash, core.options.pool, kPlacesMax);
  return std::any_of(order.begin(), order.end(), [&](routing::NodeIndex node) {
    return node != but && plan.Has(view, node == self ? routing::kNoNode : node, size);
  });
}

RoomPlan::RoomPlan(Core& core) : core_(core), now_ms_(core.runtime.NowMs()) {}

uint64_t& RoomPlan::own() {
  if (!own_) own_ = OwnRoom(core_, core_.options.high_watermark_percent);
  return *own_;
}

bool RoomPlan::Has(const routing::ClusterView& view, routing::NodeIndex node, uint64_t size) {
  if (node == routing::kNoNode) {
    return size <= core_.extents.LargestSegment() &&
           allocator::ExtentAllocator::RoundUp(size) <= own();
  }
  const routing::ViewNode& other = view.node(node);
  return core_.rooms.Has(other, size, now_ms_) && !core_.membership.Suspected(other.lease.id);
}

void RoomPlan::Take(const routing::ClusterView& view, routing::NodeIndex node, uint64_t size) {
  if (node != routing::kNoNode) {
    core_.rooms.Take(view.node(node), size, now_ms_);
  } else {
    own() -= std::min(own(), allocator::ExtentAllocator::RoundUp(size));
  }
}

}  // namespace mooncake::node

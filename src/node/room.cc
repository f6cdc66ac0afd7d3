#include "node/room.h"

#include <algorithm>

#include "allocator/extent_allocator.h"
#include "node/core.h"

namespace mooncake::node {

namespace {

// How many of a key's next best places are looked at.
constexpr size_t kPlacesMax = 8;

uint64_t ShareOf(uint64_t capacity, uint32_t percent) { return capacity / 100 * percent; }

uint64_t ActiveCapacity(const routing::ViewNode& node) {
  uint64_t capacity = 0;
  for (const SegmentRecord& segment : node.lease.segments) {
    if (segment.state == NodeState::kActive) capacity += segment.capacity_bytes;
  }
  return capacity;
}

}  // namespace

uint64_t RoomTable::RoomLocked(const routing::ViewNode& node, uint64_t now_ms) const {
  const uint64_t empty = ShareOf(ActiveCapacity(node), low_percent_);
  const auto known = entries_.find(node.lease.instance);
  if (known == entries_.end() || known->second.until_ms <= now_ms) return empty;
  return std::min(known->second.room, empty);
}

void RoomTable::PutLocked(uint32_t instance, const Entry& entry) {
  if (instance == 0) return;  // Of an older version: not told apart from others.
  if (entries_.size() >= kEntriesMax && !entries_.contains(instance)) entries_.clear();
  entries_[instance] = entry;
}

void RoomTable::Told(uint32_t instance, uint64_t room, uint64_t now_ms) {
  base::MutexLock lock(mu_);
  PutLocked(instance, {room, now_ms + kRecentMs});
}

bool RoomTable::Has(const routing::ViewNode& node, uint64_t size, uint64_t now_ms) const {
  base::MutexLock lock(mu_);
  return allocator::ExtentAllocator::RoundUp(size) <= RoomLocked(node, now_ms);
}

bool RoomTable::Take(const routing::ViewNode& node, uint64_t size, uint64_t now_ms) {
  const uint64_t bytes = allocator::ExtentAllocator::RoundUp(size);
  base::MutexLock lock(mu_);
  const uint64_t room = RoomLocked(node, now_ms);
  if (bytes > room) return false;
  const auto known = entries_.find(node.lease.instance);
  const bool recent = known != entries_.end() && known->second.until_ms > now_ms;
  const uint64_t until_ms = recent ? known->second.until_ms : now_ms + kRecentMs;
  PutLocked(node.lease.instance, {room - bytes, until_ms});
  return true;
}

uint64_t OwnRoom(const Core& core, uint32_t percent) {
  if (core.membership.state() != NodeState::kActive) return 0;
  const auto [used, capacity] = core.extents.Usage();
  const uint64_t share = ShareOf(capacity, percent);
  return share - std::min(share, used);
}

bool FillsThisNode(const Core& core, uint64_t size) {
  return allocator::ExtentAllocator::RoundUp(size) >
         OwnRoom(core, core.options.high_watermark_percent);
}

bool FitsElsewhere(Core& core, const routing::ClusterView& view, const KeyRef& ref, uint64_t size,
                   routing::NodeIndex but) {
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
  if (node != routing::kNoNode) return core_.rooms.Has(view.node(node), size, now_ms_);
  return allocator::ExtentAllocator::RoundUp(size) <= own();
}

void RoomPlan::Take(const routing::ClusterView& view, routing::NodeIndex node, uint64_t size) {
  if (node != routing::kNoNode) {
    core_.rooms.Take(view.node(node), size, now_ms_);
  } else {
    own() -= std::min(own(), allocator::ExtentAllocator::RoundUp(size));
  }
}

}  // namespace mooncake::node

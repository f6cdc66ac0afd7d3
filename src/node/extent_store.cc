#include "node/extent_store.h"

#include <algorithm>

#include "base/check.h"
#include "base/hash.h"

namespace mooncake::node {

// One registered region, its free space and its ring.
class Segment {
 public:
  Segment(uint32_t index, std::string name, MappedMemory memory)
      : index(index),
        name(std::move(name)),
        memory(std::move(memory)),
        allocator(this->memory.bytes().size()) {}

  const uint32_t index;
  const std::string name;
  const MappedMemory memory;
  allocator::ExtentAllocator allocator;
  std::atomic<NodeState> state{NodeState::kActive};

  base::Mutex ring_mu;
  eviction::ClockRing ring MC_GUARDED_BY(ring_mu);
  uint64_t newest MC_GUARDED_BY(ring_mu) = 0;  // The highest generation that went live.
};

MutableBytes Extent::data() const { return segment_->memory.bytes().subspan(offset_, size_); }

Place Extent::place() const { return {kSelf, segment_->index, offset_, generation_}; }

uint32_t Extent::segment_index() const { return segment_->index; }

ExtentPin::ExtentPin(Extent* extent) : extent_(extent) {
  if (extent_ != nullptr) extent_->pins_.fetch_add(1, std::memory_order_relaxed);
}

ExtentPin::ExtentPin(const ExtentPin& other) : ExtentPin(other.extent_) {}

void ExtentPin::Drop() {
  if (extent_ == nullptr) return;
  // Release: our reads of the bytes come before the reuse; acquire: the last one sees them all.
  if (extent_->pins_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    MC_CHECK(extent_->segment_->allocator.Free(extent_->offset_));
    delete extent_;
  }
  extent_ = nullptr;
}

ExtentStore::ExtentStore()
    : published_(std::make_unique<std::atomic<Segment*>[]>(kSegmentsMax)),
      shards_(std::make_unique<IndexShard[]>(kIndexShards)) {}

ExtentStore::~ExtentStore() {
  for (size_t i = 0; i < kIndexShards; ++i) {
    for (const ExtentPin& extent : ShardExtents(i)) Retire(*extent);
  }
}

uint64_t ExtentStore::PlaceKey(uint32_t segment, uint64_t offset) {
  return (uint64_t{segment} << 52) | (offset / allocator::kAlignment);
}

ExtentStore::IndexShard& ExtentStore::ShardOf(uint64_t place_key) const {
  return shards_[base::Mix64(place_key) % kIndexShards];
}

Segment* ExtentStore::SegmentAt(uint32_t index) const {
  if (index >= segment_count_.load(std::memory_order_acquire)) return nullptr;
  return published_[index].load(std::memory_order_acquire);
}

uint32_t ExtentStore::AddSegment(std::string name, MappedMemory memory) {
  base::MutexLock lock(mu_);
  const auto index = static_cast<uint32_t>(segments_.size());
  MC_CHECK(index < kSegmentsMax);
  segments_.push_back(std::make_unique<Segment>(index, std::move(name), std::move(memory)));
  published_[index].store(segments_.back().get(), std::memory_order_release);
  segment_count_.store(index + 1, std::memory_order_release);
  return index;
}

const MappedMemory* ExtentStore::SegmentMemory(uint32_t index) const {
  const Segment* segment = SegmentAt(index);
  return segment == nullptr ? nullptr : &segment->memory;
}

void ExtentStore::SetSegmentState(uint32_t index, NodeState state) {
  if (Segment* segment = SegmentAt(index)) segment->state.store(state);
}

void ExtentStore::DiscardSegment(uint32_t index) {
  Segment* segment = SegmentAt(index);
  if (segment != nullptr && segment->allocator.used_bytes() == 0) segment->memory.Discard();
}

std::vector<SegmentStats> ExtentStore::Stats() const {
  std::vector<SegmentStats> stats;
  const uint32_t count = segment_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    const Segment& segment = *SegmentAt(i);
    stats.push_back({i, segment.name, segment.allocator.capacity_bytes(),
                     segment.allocator.used_bytes(), segment.state.load()});
  }
  return stats;
}

template <typename Visit>
void ExtentStore::ForEachActive(const Visit& visit) const {
  const uint32_t count = segment_count_.load(std::memory_order_acquire);
  for (uint32_t i = 0; i < count; ++i) {
    Segment& segment = *SegmentAt(i);
    if (segment.state.load(std::memory_order_relaxed) == NodeState::kActive) visit(segment);
  }
}

std::pair<uint64_t, uint64_t> ExtentStore::Usage() const {
  uint64_t used = 0;
  uint64_t capacity = 0;
  ForEachActive([&](const Segment& segment) {
    used += segment.allocator.used_bytes();
    capacity += segment.allocator.capacity_bytes();
  });
  return {used, capacity};
}

uint64_t ExtentStore::CapacityOf(std::string_view name) const {
  uint64_t largest = 0;
  ForEachActive([&](const Segment& segment) {
    const bool meant = name.empty() || segment.name == name;
    if (meant) largest = std::max(largest, segment.allocator.capacity_bytes());
  });
  return largest;
}

std::vector<std::pair<double, Segment*>> ExtentStore::ActiveByFill() const {
  std::vector<std::pair<double, Segment*>> segments;
  ForEachActive([&](Segment& segment) {
    const auto capacity = static_cast<double>(segment.allocator.capacity_bytes());
    if (capacity == 0) return;
    segments.emplace_back(static_cast<double>(segment.allocator.used_bytes()) / capacity, &segment);
  });
  std::sort(segments.begin(), segments.end(), [](const auto& one, const auto& other) {
    return std::pair(one.first, one.second->index) < std::pair(other.first, other.second->index);
  });
  return segments;
}

ExtentPin ExtentStore::Reserve(const ReserveRequest& request) {
  if (segment_count_.load(std::memory_order_acquire) == 1) {
    return ReserveIn(*SegmentAt(0), request);
  }
  for (const auto& [fill, segment] : ActiveByFill()) {
    if (ExtentPin pin = ReserveIn(*segment, request)) return pin;
  }
  return {};
}

ExtentPin ExtentStore::ReserveIn(Segment& segment, const ReserveRequest& request) {
  if (segment.state.load(std::memory_order_relaxed) != NodeState::kActive) return {};
  if (!request.segment.empty() && request.segment != segment.name) return {};
  const uint64_t limit = segment.allocator.capacity_bytes() / 100 * request.fill_percent_max;
  const uint64_t after =
      segment.allocator.used_bytes() + allocator::ExtentAllocator::RoundUp(request.size);
  if (request.fill_percent_max < 100 && after >= limit) return {};
  const std::optional<uint64_t> offset = segment.allocator.Allocate(request.size);
  if (!offset) return {};
  segment.memory.Prepare(*offset, request.size);
  Extent* const extent = std::make_unique<Extent>().release();  // Its pins own it.
  extent->segment_ = &segment;
  extent->offset_ = *offset;
  extent->size_ = request.size;
  extent->generation_ = next_generation_.fetch_add(1, std::memory_order_relaxed);
  extent->key_hash_ = request.ref.hash;
  extent->scope_ = request.ref.scope;
  extent->key_ = std::string(request.ref.key);
  extent->soft_pin_ = request.soft_pin;
  extent->writer_ = request.writer;
  extent->created_ms_ = request.now_ms;
  const uint64_t for_ms =
      request.writer_until_ms - std::min(request.writer_until_ms, request.now_ms);
  extent->writer_for_s_ =
      static_cast<uint32_t>(std::min<uint64_t>((for_ms + 999) / 1000, UINT32_MAX));
  ExtentPin pin(extent);
  const uint64_t key = PlaceKey(segment.index, *offset);
  IndexShard& shard = ShardOf(key);
  base::MutexLock lock(shard.mu);
  shard.by_place.insert_or_assign(key, pin);
  return pin;
}

void ExtentStore::Commit(Extent& extent, Version version) {
  Segment& segment = *extent.segment_;
  base::MutexLock lock(segment.ring_mu);
  // The writer and the authority both say so, perhaps late: meanwhile a newer route may name it.
  if (version > extent.version()) extent.version_.store(version, std::memory_order_relaxed);
  // Under the ring's lock, so that a Retire at the same time sees the state or the entry.
  ExtentState expected = ExtentState::kReserved;
  if (extent.state_.compare_exchange_strong(expected, ExtentState::kLive)) {
    segment.ring.Insert(extent, extent.soft_pin_);
    segment.newest = std::max(segment.newest, extent.generation_);
  }
}

bool ExtentStore::Retire(Extent& extent) {
  Segment& segment = *extent.segment_;
  {
    base::MutexLock lock(segment.ring_mu);
    if (extent.state_.exchange(ExtentState::kRetired) == ExtentState::kRetired) return false;
    segment.ring.Remove(extent);
  }
  ExtentPin index_pin;  // Dropped after the shard's lock.
  const uint64_t key = PlaceKey(segment.index, extent.offset_);
  IndexShard& shard = ShardOf(key);
  base::MutexLock lock(shard.mu);
  auto found = shard.by_place.find(key);
  if (found != shard.by_place.end() && found->second.get() == &extent) {
    std::swap(index_pin, found->second);
    shard.by_place.erase(found);
  }
  return true;
}

uint64_t ExtentStore::extent_count() const {
  uint64_t count = 0;
  for (size_t i = 0; i < kIndexShards; ++i) {
    base::MutexLock lock(shards_[i].mu);
    count += shards_[i].by_place.size();
  }
  return count;
}

ExtentPin ExtentStore::Find(uint32_t segment, uint64_t offset, uint64_t generation) const {
  const uint64_t key = PlaceKey(segment, offset);
  IndexShard& shard = ShardOf(key);
  base::MutexLock lock(shard.mu);
  auto found = shard.by_place.find(key);
  if (found == shard.by_place.end()) return {};
  const Extent& extent = *found->second;
  // The key is shorter than the three numbers: a peer's nonsense may share one.
  const bool right = extent.generation_ == generation && extent.offset_ == offset &&
                     extent.segment_->index == segment;
  if (!right) return {};
  return found->second;
}

std::vector<ExtentPin> ExtentStore::TakeVictims(uint64_t bytes, const VictimsWanted& wanted) {
  std::vector<ExtentPin> victims;
  const std::vector<std::pair<double, Segment*>> segments = ActiveByFill();
  for (auto next = segments.rbegin(); next != segments.rend() && victims.empty(); ++next) {
    Segment& segment = *next->second;
    if (!wanted.segment.empty() && wanted.segment != segment.name) continue;
    if (segment.allocator.capacity_bytes() < wanted.size) continue;
    victims = TakeVictimsOf(segment, bytes, wanted.newest);
  }
  return victims;
}

std::vector<ExtentPin> ExtentStore::TakeVictimsOf(Segment& segment, uint64_t bytes, Newest newest) {
  std::vector<ExtentPin> victims;
  uint64_t taken = 0;
  size_t counted = 0;
  uint64_t spared = 0;  // No generation.
  auto evictable = [&spared](const eviction::ClockEntry& entry) {
    const auto& extent = static_cast<const Extent&>(entry);
    return !extent.in_use() && extent.generation_ != spared;
  };
  auto enough = [&](const std::vector<eviction::ClockEntry*>& entries) {
    for (; counted < entries.size(); ++counted) {
      const auto& extent = static_cast<const Extent&>(*entries[counted]);
      taken += allocator::ExtentAllocator::RoundUp(extent.size_);
    }
    return taken >= bytes;
  };
  base::MutexLock lock(segment.ring_mu);
  if (newest == Newest::kStays) spared = segment.newest;
  for (eviction::ClockEntry* entry : segment.ring.TakeVictims(evictable, enough)) {
    victims.emplace_back(static_cast<Extent*>(entry));
  }
  return victims;
}

void ExtentStore::GiveBack(Extent& extent) {
  Segment& segment = *extent.segment_;
  base::MutexLock lock(segment.ring_mu);
  if (extent.state() == ExtentState::kLive && !extent.in_ring()) {
    segment.ring.Insert(extent, extent.soft_pin_);
  }
}

std::vector<ExtentPin> ExtentStore::ShardExtents(size_t shard_number) const {
  std::vector<ExtentPin> extents;
  IndexShard& shard = shards_[shard_number];
  base::MutexLock lock(shard.mu);
  extents.reserve(shard.by_place.size());
  for (const auto& [key, pin] : shard.by_place) extents.push_back(pin);
  return extents;
}

}  // namespace mooncake::node

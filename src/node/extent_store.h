// ExtentStore: the owner's side. Segments of memory, the extents in them, and who may use them.
//
// An extent is reachable only through an ExtentPin, and holding a pin is holding the bytes: the
// space returns to the allocator when the extent is retired *and* the last pin is gone. The
// index holds one pin of every reserved or live extent; retiring drops it.
//
// Life of an extent: Reserve (invisible, being written) -> Commit (live, in the CLOCK ring) ->
// Retire (no longer found, still readable through pins). Reserve -> Retire is an aborted write.
//
// Thread-safe. No method calls a port or blocks on anything but short locks, but Reserve asks the
// kernel for huge pages where shared memory comes into use (MappedMemory::Prepare).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "allocator/extent_allocator.h"
#include "base/mutex.h"
#include "eviction/clock_ring.h"
#include "mooncake/bytes.h"
#include "node/types.h"
#include "runtime/mapped_memory.h"

namespace mooncake::node {

class ExtentStore;
class Segment;

enum class ExtentState : uint8_t { kReserved, kLive, kRetired };

class Extent : public eviction::ClockEntry {
 public:
  MutableBytes data() const;
  uint64_t size() const { return size_; }
  Place place() const;
  const KeyRef ref() const { return {key_hash_, scope_, key_}; }
  uint32_t segment_index() const;
  ExtentState state() const { return state_.load(std::memory_order_acquire); }
  Version version() const { return version_.load(std::memory_order_relaxed); }
  uint64_t checksum() const { return checksum_; }
  bool has_checksum() const { return has_checksum_; }
  bool wants_soft_pin() const { return soft_pin_; }
  NameIndex writer() const { return writer_; }
  uint64_t created_ms() const { return created_ms_; }
  // By when its writer will have published it, or given up.
  uint64_t writer_until_ms() const { return created_ms_ + uint64_t{writer_for_s_} * 1000; }
  // When its writer gave it up without knowing whether it is published; 0: it did not.
  uint64_t abandoned_ms() const { return abandoned_ms_.load(std::memory_order_relaxed); }
  void Abandon(uint64_t now_ms) { abandoned_ms_.store(now_ms, std::memory_order_relaxed); }
  uint32_t pins() const { return pins_.load(std::memory_order_relaxed); }
  // Whether somebody holds it besides the index and the local route, as readers do.
  bool in_use() const { return pins() > kIdlePins; }

  // REQUIRES: reserved, and the caller is the only one who writes it.
  void SetChecksum(uint64_t checksum) {
    checksum_ = checksum;
    has_checksum_ = true;
  }

 private:
  friend class ExtentStore;
  friend class ExtentPin;
  friend class Segment;
  static constexpr uint32_t kIdlePins = 2;
  Segment* segment_ = nullptr;  // Outlives every extent.
  uint64_t offset_ = 0;
  uint64_t size_ = 0;
  uint64_t generation_ = 0;
  uint64_t key_hash_ = 0;
  uint64_t checksum_ = 0;
  uint64_t created_ms_ = 0;
  std::atomic<uint64_t> abandoned_ms_{0};
  std::atomic<Version> version_{0};
  std::string key_;
  ScopeIndex scope_ = 0;
  NameIndex writer_ = 0;
  std::atomic<uint32_t> pins_{0};
  std::atomic<ExtentState> state_{ExtentState::kReserved};
  uint32_t writer_for_s_ = 0;
  bool has_checksum_ = false;
  bool soft_pin_ = false;
};

// Move- and copyable handle; its extent's bytes cannot be reused while it lives.
class ExtentPin {
 public:
  ExtentPin() = default;
  explicit ExtentPin(Extent* extent);
  ExtentPin(const ExtentPin& other);
  ExtentPin(ExtentPin&& other) noexcept : extent_(std::exchange(other.extent_, nullptr)) {}
  ExtentPin& operator=(ExtentPin other) noexcept {
    std::swap(extent_, other.extent_);
    return *this;
  }
  ~ExtentPin() { Drop(); }
  Extent* operator->() const { return extent_; }
  Extent& operator*() const { return *extent_; }
  Extent* get() const { return extent_; }
  explicit operator bool() const { return extent_ != nullptr; }

 private:
  void Drop();
  Extent* extent_ = nullptr;
};

struct SegmentStats {
  uint32_t index = 0;
  std::string name;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  NodeState state = NodeState::kActive;
};

struct ReserveRequest {
  KeyRef ref;
  uint64_t size = 0;
  bool soft_pin = false;
  NameIndex writer = kSelf;
  uint64_t now_ms = 0;
  std::string_view segment;  // Empty: any active one.
  // Below 100: a segment that would be as full as that, or fuller, is passed over.
  uint32_t fill_percent_max = 100;
  uint64_t writer_until_ms = 0;  // By then it is published, or its writer has given up; 0: unknown.
};

class ExtentStore {
 public:
  ExtentStore();
  ~ExtentStore();  // REQUIRES: no pin is left outside.

  // Of the process that owns it: what generations begin with. REQUIRES: before the first Reserve.
  void SetInstance(uint32_t instance) { next_generation_.store(FirstGeneration(instance)); }
  // Offers memory. The index is the segment's number in the node's lease for ever.
  uint32_t AddSegment(std::string name, MappedMemory memory);
  void SetSegmentState(uint32_t index, NodeState state);
  // Gives the pages of a segment that is not active and holds nothing back to the kernel.
  void DiscardSegment(uint32_t index);
  std::vector<SegmentStats> Stats() const;
  bool has_segments() const { return segment_count_.load(std::memory_order_acquire) > 0; }
  // The memory of a segment, with its descriptor if it is shared. nullptr: no such segment.
  const MappedMemory* SegmentMemory(uint32_t index) const;
  // The largest capacity of an active segment, or of the one of that name (0: there is none); what
  // is larger can never be stored here, or there.
  uint64_t LargestSegment() const { return CapacityOf({}); }
  uint64_t CapacityOf(std::string_view name) const;
  // Used and capacity of the active segments together.
  std::pair<uint64_t, uint64_t> Usage() const;

  uint64_t extent_count() const;  // Reserved and live ones.

  // An empty pin: no active segment has room now.
  ExtentPin Reserve(const ReserveRequest& request);
  // Live from here on: found by place, evictable. No effect on a retired extent.
  void Commit(Extent& extent, Version version);
  // Takes the extent out of use. Idempotent. True: this call did it.
  bool Retire(Extent& extent);
  // The extent at a place, unless it was retired or replaced. Reserved ones are found too.
  ExtentPin Find(uint32_t segment, uint64_t offset, uint64_t generation) const;

  // Victims, taken out of the ring but still live: the caller retires them or gives them back.
  // About `bytes` of them, of one active segment: the fullest that has any.
  enum class Newest : uint8_t { kMayGo, kStays };  // Of the segment's live extents.
  struct VictimsWanted {
    std::string_view segment;  // Empty: of any.
    uint64_t size = 0;         // Of the value that is to get room: of segments that can hold it.
    Newest newest = Newest::kMayGo;
  };
  std::vector<ExtentPin> TakeVictims(uint64_t bytes, const VictimsWanted& wanted);
  void GiveBack(Extent& extent);

  // Enumerates the extents in pages: shard numbers 0 .. kIndexShards - 1.
  static constexpr size_t kIndexShards = 64;
  std::vector<ExtentPin> ShardExtents(size_t shard) const;

 private:
  struct IndexShard {
    mutable base::Mutex mu;
    std::unordered_map<uint64_t, ExtentPin> by_place MC_GUARDED_BY(mu);
  };
  template <typename Visit>
  void ForEachActive(const Visit& visit) const;
  static uint64_t PlaceKey(uint32_t segment, uint64_t offset);
  IndexShard& ShardOf(uint64_t place_key) const;
  Segment* SegmentAt(uint32_t index) const;
  // Active segments with how full they are, the emptiest first: all get full at the same time.
  std::vector<std::pair<double, Segment*>> ActiveByFill() const;
  ExtentPin ReserveIn(Segment& segment, const ReserveRequest& request);
  std::vector<ExtentPin> TakeVictimsOf(Segment& segment, uint64_t bytes, Newest newest);

  static constexpr size_t kSegmentsMax = 1024;
  mutable base::Mutex mu_;  // Guards growth of segments_; entries are stable once published.
  std::vector<std::unique_ptr<Segment>> segments_ MC_GUARDED_BY(mu_);
  std::unique_ptr<std::atomic<Segment*>[]> published_;  // kSegmentsMax; nullptr: none yet.
  std::atomic<uint32_t> segment_count_{0};
  std::unique_ptr<IndexShard[]> shards_;
  std::atomic<uint64_t> next_generation_{1};
};

}  // namespace mooncake::node

// ClockRing: which objects of a segment go when room is needed. CLOCK with hit credit 2, one
// grace pass for fresh writes, soft pins last. Pure policy: it owns nothing and frees nothing;
// the caller takes victims and removes or re-inserts them.
//
// Entries are intrusive, so insert, remove and touch are O(1) without allocation. A hit
// (ClockEntry::Touch) is one relaxed atomic store and needs no lock; all else is the ring's
// and must be externally synchronised.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace mooncake::eviction {

inline constexpr uint8_t kHitCredit = 2;

// Base of what is evicted. Must outlive its membership in a ring.
class ClockEntry {
 public:
  ClockEntry() = default;
  ClockEntry(const ClockEntry&) = delete;
  ClockEntry& operator=(const ClockEntry&) = delete;

  // Records a hit. Thread-safe.
  void Touch() { credit_.store(kHitCredit, std::memory_order_relaxed); }
  bool in_ring() const { return next_ != nullptr; }
  bool soft_pinned() const { return soft_pinned_; }

 private:
  friend class ClockRing;
  ClockEntry* next_ = nullptr;
  ClockEntry* previous_ = nullptr;
  std::atomic<uint8_t> credit_{0};
  bool fresh_ = false;
  bool soft_pinned_ = false;
};

class ClockRing {
 public:
  using Evictable = std::function<bool(const ClockEntry&)>;
  using Enough = std::function<bool(const std::vector<ClockEntry*>&)>;

  // Adds a fresh entry just behind the hand: it is looked at last. Earlier hits are forgotten.
  // REQUIRES: the entry is in no ring. A pin that lapses is a Remove and an Insert.
  void Insert(ClockEntry& entry, bool soft_pinned);
  // No-op for an entry that is not in the ring.
  void Remove(ClockEntry& entry);
  size_t size() const { return unpinned_.size + pinned_.size; }

  // Takes victims out of the ring until `enough` says so for the ones taken so far (it is asked
  // for none at first), in CLOCK order; soft-pinned entries (oldest first, whatever their hits)
  // only when no evictable unpinned one is left. `evictable` false skips an entry and leaves it
  // in, with its credit (it is being read or written now). Looks at each entry at most
  // kHitCredit + 2 times, so it ends even when nothing is evictable. The callbacks must not
  // change the ring.
  std::vector<ClockEntry*> TakeVictims(const Evictable& evictable, const Enough& enough);

 private:
  struct List {
    ClockEntry* hand = nullptr;
    size_t size = 0;
  };
  // One for the grace of a fresh entry, one for each credit, one to take it.
  static constexpr int kRounds = kHitCredit + 2;

  static void Link(List& list, ClockEntry& entry);
  static void Unlink(List& list, ClockEntry& entry);
  static bool Spare(ClockEntry& entry);
  bool TakeUnpinned(const Evictable& evictable, const Enough& enough,
                    std::vector<ClockEntry*>& victims);
  bool TakePinned(const Evictable& evictable, const Enough& enough,
                  std::vector<ClockEntry*>& victims);

  List unpinned_;
  List pinned_;
};

}  // namespace mooncake::eviction

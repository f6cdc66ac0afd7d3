#include "eviction/clock_ring.h"

#include "base/check.h"

namespace mooncake::eviction {

// In front of the hand in list order is behind it in time: the hand comes there last.
void ClockRing::Link(List& list, ClockEntry& entry) {
  if (list.hand == nullptr) {
    entry.next_ = entry.previous_ = list.hand = &entry;
  } else {
    entry.next_ = list.hand;
    entry.previous_ = list.hand->previous_;
    entry.previous_->next_ = &entry;
    list.hand->previous_ = &entry;
  }
  ++list.size;
}

void ClockRing::Unlink(List& list, ClockEntry& entry) {
  if (--list.size == 0) {
    list.hand = nullptr;
  } else {
    if (list.hand == &entry) list.hand = entry.next_;
    entry.previous_->next_ = entry.next_;
    entry.next_->previous_ = entry.previous_;
  }
  entry.next_ = entry.previous_ = nullptr;
}

void ClockRing::Insert(ClockEntry& entry, bool soft_pinned) {
  MC_CHECK(!entry.in_ring());
  entry.credit_.store(0, std::memory_order_relaxed);
  entry.fresh_ = true;
  entry.soft_pinned_ = soft_pinned;
  Link(soft_pinned ? pinned_ : unpinned_, entry);
}

void ClockRing::Remove(ClockEntry& entry) {
  if (entry.in_ring()) Unlink(entry.soft_pinned_ ? pinned_ : unpinned_, entry);
}

// Whether the hand passes over the entry this time, at the price of its grace or of a credit.
bool ClockRing::Spare(ClockEntry& entry) {
  if (entry.fresh_) {
    entry.fresh_ = false;
    return true;
  }
  uint8_t credit = entry.credit_.load(std::memory_order_relaxed);
  if (credit == 0) return false;
  // A hit in between is worth more than this pass, hence no plain store.
  entry.credit_.compare_exchange_strong(credit, static_cast<uint8_t>(credit - 1),
                                        std::memory_order_relaxed);
  return true;
}

bool ClockRing::TakeUnpinned(const Evictable& evictable, const Enough& enough,
                             std::vector<ClockEntry*>& victims) {
  for (int round = 0; round < kRounds; ++round) {
    bool changed = false;
    for (size_t looks = unpinned_.size; looks > 0; --looks) {
      ClockEntry& entry = *unpinned_.hand;
      unpinned_.hand = entry.next_;
      if (!evictable(entry)) continue;
      changed = true;
      // By the last round every grace and credit is spent, unless hits keep coming in. They do
      // not save an entry then: soft pins outlive all else.
      bool last = round == kRounds - 1;
      if (!last && Spare(entry)) continue;
      Unlink(unpinned_, entry);
      victims.push_back(&entry);
      if (enough(victims)) return true;
    }
    if (!changed) return false;
  }
  return false;
}

// First in, first out: a hit does not prolong a pin, so reading cannot keep pins for ever.
bool ClockRing::TakePinned(const Evictable& evictable, const Enough& enough,
                           std::vector<ClockEntry*>& victims) {
  ClockEntry* next = pinned_.hand;
  for (size_t looks = pinned_.size; looks > 0; --looks) {
    ClockEntry& entry = *next;
    next = entry.next_;
    if (!evictable(entry)) continue;
    Unlink(pinned_, entry);
    victims.push_back(&entry);
    if (enough(victims)) return true;
  }
  return false;
}

std::vector<ClockEntry*> ClockRing::TakeVictims(const Evictable& evictable, const Enough& enough) {
  std::vector<ClockEntry*> victims;
  if (enough(victims)) return victims;
  if (TakeUnpinned(evictable, enough, victims)) return victims;
  TakePinned(evictable, enough, victims);
  return victims;
}

}  // namespace mooncake::eviction

#include "node/miss_reasons.h"

#include "base/hash.h"

namespace mooncake::node {

namespace {

constexpr uint64_t kLow = 0xFFFF;  // The bits of an entry that are not of the hash.
constexpr uint64_t kEvicted = 1;
constexpr uint64_t kOwnerGone = 2;

uint64_t TextHash(const KeyRef& ref) { return base::Hash64(ref.key); }
// Never 0, so that no entry is.
uint64_t ScopeBits(ScopeIndex scope) { return (scope % (kLow - 1)) + 1; }

}  // namespace

// The place comes from the top of the hash: its bottom says which slot a key is in, and thereby
// which node.
std::atomic<uint64_t>& MissReasons::PlaceOf(Table& table, uint64_t hash) {
  return table[(hash >> 40) % kPlaces];
}

void MissReasons::ForgetLost(uint64_t key_hash) {
  std::atomic<uint64_t>& place = PlaceOf(tables_->lost, key_hash);
  const uint64_t entry = place.load(std::memory_order_relaxed);
  if (entry != 0 && (entry & ~kLow) == (key_hash & ~kLow)) {
    place.store(0, std::memory_order_relaxed);
  }
}

void MissReasons::NotePublished(const KeyRef& ref) {
  const uint64_t hash = TextHash(ref);
  PlaceOf(tables_->published, hash)
      .store((hash & ~kLow) | ScopeBits(ref.scope), std::memory_order_relaxed);
  ForgetLost(ref.hash);
}

void MissReasons::NoteRemoved(const KeyRef& ref) {
  const uint64_t hash = TextHash(ref);
  std::atomic<uint64_t>& place = PlaceOf(tables_->published, hash);
  if (place.load(std::memory_order_relaxed) == ((hash & ~kLow) | ScopeBits(ref.scope))) {
    place.store(0, std::memory_order_relaxed);
  }
  ForgetLost(ref.hash);
}

void MissReasons::NoteLost(uint64_t key_hash, ItemCode why) {
  const uint64_t bits = why == kItemEvicted ? kEvicted : kOwnerGone;
  PlaceOf(tables_->lost, key_hash).store((key_hash & ~kLow) | bits, std::memory_order_relaxed);
}

ItemCode MissReasons::WhyAbsent(const KeyRef& ref) const {
  const uint64_t lost = PlaceOf(tables_->lost, ref.hash).load(std::memory_order_relaxed);
  if (lost != 0 && (lost & ~kLow) == (ref.hash & ~kLow)) {
    return (lost & kLow) == kEvicted ? kItemEvicted : kItemOwnerGone;
  }
  const uint64_t hash = TextHash(ref);
  const uint64_t known = PlaceOf(tables_->published, hash).load(std::memory_order_relaxed);
  const bool elsewhere =
      known != 0 && (known & ~kLow) == (hash & ~kLow) && (known & kLow) != ScopeBits(ref.scope);
  return elsewhere ? kItemOtherScope : CodeOf(ErrorCode::kNotFound);
}

}  // namespace mooncake::node

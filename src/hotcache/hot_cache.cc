#include "hotcache/hot_cache.h"

#include <algorithm>

#include "base/check.h"

namespace mooncake::hotcache {

namespace {
// Slots smaller than that would cost more to keep than they hold.
constexpr uint64_t kSlotBytesMin = 1024;
constexpr uint64_t kAlignment = 64;
// How many pinned candidates are passed over before a value is not worth keeping.
constexpr int kPassedOverMax = 64;
}  // namespace

MutableBytes HotCache::Pin::bytes() const {
  return cache_->memory_.subspan(slot_->offset, slot_->size);
}
uint64_t HotCache::Pin::offset() const { return slot_->offset; }
uint64_t HotCache::Pin::generation() const { return slot_->generation; }
uint64_t HotCache::Pin::version() const {
  base::MutexLock lock(cache_->mu_);
  return slot_->version;
}
uint64_t HotCache::Pin::checksum() const {
  base::MutexLock lock(cache_->mu_);
  return slot_->checksum;
}
uint64_t HotCache::Pin::filled_ms() const {
  base::MutexLock lock(cache_->mu_);
  return slot_->filled_ms;
}

HotCache::HotCache(MutableBytes memory, uint64_t block_bytes)
    : memory_(memory), block_bytes_(block_bytes) {
  MC_CHECK(block_bytes > 0 && block_bytes <= memory.size());
  base::MutexLock lock(mu_);
  for (uint64_t slot_bytes = block_bytes;;) {
    classes_.push_back({slot_bytes, {}, {}});
    slot_bytes = slot_bytes / 2 / kAlignment * kAlignment;
    if (slot_bytes < kSlotBytesMin) break;
  }
  blocks_.resize(memory.size() / block_bytes);
  for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i].offset = i * block_bytes;
  for (size_t i = blocks_.size(); i > 0; --i) uncut_.push_back(&blocks_[i - 1]);
}

HotCache::~HotCache() {
  base::MutexLock lock(mu_);
  MC_CHECK(stats_.pinned_slots == 0);
}

int HotCache::ClassOf(uint64_t size) const {
  int size_class = 0;
  uint64_t slot_bytes = block_bytes_;
  while (true) {
    slot_bytes = slot_bytes / 2 / kAlignment * kAlignment;
    if (slot_bytes < size || slot_bytes < kSlotBytesMin) return size_class;
    ++size_class;
  }
}

HotCache::Slot* HotCache::FindLocked(const CacheKey& key) {
  auto [begin, end] = index_.equal_range(IndexOf(key.scope, key.hash));
  for (auto it = begin; it != end; ++it) {
    Slot& slot = *it->second;
    if (slot.hash == key.hash && slot.scope == key.scope && slot.domain == key.domain &&
        slot.key == key.key) {
      return &slot;
    }
  }
  return nullptr;
}

HotCache::Pin HotCache::Find(const CacheKey& key) {
  base::MutexLock lock(mu_);
  Slot* slot = FindLocked(key);
  if (slot == nullptr) return {};
  TouchLocked(*slot);
  PinLocked(*slot);
  return {this, slot};
}

HotCache::Pin HotCache::Reserve(uint64_t size) {
  if (size == 0 || size > block_bytes_) return {};
  const int size_class = ClassOf(size);
  base::MutexLock lock(mu_);
  Slot* slot = TakeLocked(size_class);
  if (slot == nullptr) return {};
  slot->size = size;
  slot->generation = ++generation_;
  TouchLocked(*slot);
  PinLocked(*slot);
  return {this, slot};
}

void HotCache::Publish(const CacheKey& key, const Pin& pin, uint64_t version, uint64_t checksum,
                       uint64_t now_ms) {
  MC_CHECK(version > 0);
  base::MutexLock lock(mu_);
  Slot& slot = *pin.slot_;
  if (slot.listed) return;
  if (Slot* known = FindLocked(key)) {
    if (known->version >= version) return;
    UnlistLocked(*known);
  }
  slot.domain = key.domain;
  slot.scope = key.scope;
  slot.hash = key.hash;
  slot.key = std::string(key.key);
  slot.version = version;
  slot.checksum = checksum;
  slot.filled_ms = now_ms;
  slot.listed = true;
  index_.emplace(IndexOf(key.scope, key.hash), &slot);
  Recency& recent = classes_[slot.block->size_class].recent;
  slot.recency = recent.insert(recent.begin(), &slot);
  ++stats_.entries;
  stats_.bytes += slot.size;
}

void HotCache::Confirm(const Pin& pin, uint64_t now_ms) {
  base::MutexLock lock(mu_);
  pin.slot_->filled_ms = std::max(pin.slot_->filled_ms, now_ms);
}

void HotCache::Erase(uint32_t scope, uint64_t hash, std::string_view key) {
  base::MutexLock lock(mu_);
  auto [begin, end] = index_.equal_range(IndexOf(scope, hash));
  std::vector<Slot*> found;
  for (auto it = begin; it != end; ++it) {
    Slot& slot = *it->second;
    if (slot.hash == hash && slot.scope == scope && slot.key == key) found.push_back(&slot);
  }
  for (Slot* slot : found) UnlistLocked(*slot);
}

void HotCache::EraseScope(uint32_t scope) {
  base::MutexLock lock(mu_);
  std::vector<Slot*> found;
  for (const auto& [hash, slot] : index_) {
    if (slot->scope == scope) found.push_back(slot);
  }
  for (Slot* slot : found) UnlistLocked(*slot);
}

HotCache::Stats HotCache::stats() const {
  base::MutexLock lock(mu_);
  return stats_;
}

HotCache::Slot* HotCache::TakeLocked(int size_class) {
  Class& own = classes_[size_class];
  if (own.free.empty() && !uncut_.empty()) {
    Block& block = *uncut_.back();
    uncut_.pop_back();
    CutLocked(block, size_class);
  }
  if (own.free.empty()) {
    Slot* idlest = IdlestLocked(own);
    Block* block = IdlestBlockLocked();
    const bool take_block = block != nullptr && block->size_class != size_class &&
                            (idlest == nullptr || block->used_tick < idlest->used_tick);
    if (take_block) {
      UncutLocked(*block);
      CutLocked(*block, size_class);
    } else if (idlest != nullptr) {
      ++stats_.evictions;
      UnlistLocked(*idlest);
    }
  }
  if (own.free.empty()) return nullptr;
  Slot* slot = own.free.back();
  own.free.pop_back();
  return slot;
}

HotCache::Slot* HotCache::IdlestLocked(Class& of) {
  int passed_over = 0;
  for (auto it = of.recent.rbegin(); it != of.recent.rend(); ++it) {
    if ((*it)->pins == 0) return *it;
    if (++passed_over == kPassedOverMax) break;
  }
  return nullptr;
}

HotCache::Block* HotCache::IdlestBlockLocked() {
  int passed_over = 0;
  for (auto it = block_recency_.rbegin(); it != block_recency_.rend(); ++it) {
    if ((*it)->pins == 0) return *it;
    if (++passed_over == kPassedOverMax) break;
  }
  return nullptr;
}

void HotCache::CutLocked(Block& block, int size_class) {
  Class& own = classes_[size_class];
  block.size_class = size_class;
  const uint64_t count = block_bytes_ / own.slot_bytes;
  block.slots.resize(count);
  for (uint64_t i = count; i > 0; --i) {
    Slot& slot = block.slots[i - 1];
    slot.block = &block;
    slot.offset = block.offset + (i - 1) * own.slot_bytes;
    own.free.push_back(&slot);
  }
  block.used_tick = ++tick_;
  block.recency = block_recency_.insert(block_recency_.begin(), &block);
}

void HotCache::UncutLocked(Block& block) {
  MC_CHECK(block.pins == 0);
  for (Slot& slot : block.slots) {
    if (!slot.listed) continue;
    ++stats_.evictions;
    UnlistLocked(slot);
  }
  std::erase_if(classes_[block.size_class].free,
                [&](const Slot* slot) { return slot->block == &block; });
  block_recency_.erase(block.recency);
  block.slots.clear();
}

void HotCache::TouchLocked(Slot& slot) {
  Block& block = *slot.block;
  slot.used_tick = block.used_tick = ++tick_;
  block_recency_.splice(block_recency_.begin(), block_recency_, block.recency);
  if (!slot.listed) return;
  Recency& recent = classes_[block.size_class].recent;
  recent.splice(recent.begin(), recent, slot.recency);
}

void HotCache::PinLocked(Slot& slot) {
  if (slot.pins++ == 0) ++stats_.pinned_slots;
  ++slot.block->pins;
}

void HotCache::UnlistLocked(Slot& slot) {
  auto [begin, end] = index_.equal_range(IndexOf(slot.scope, slot.hash));
  for (auto it = begin; it != end; ++it) {
    if (it->second != &slot) continue;
    index_.erase(it);
    break;
  }
  classes_[slot.block->size_class].recent.erase(slot.recency);
  slot.listed = false;
  --stats_.entries;
  stats_.bytes -= slot.size;
  if (slot.pins == 0) FreeLocked(slot);
}

void HotCache::FreeLocked(Slot& slot) {
  slot.key.clear();
  slot.version = 0;
  classes_[slot.block->size_class].free.push_back(&slot);
}

void HotCache::Unpin(Slot& slot) {
  base::MutexLock lock(mu_);
  --slot.block->pins;
  if (--slot.pins > 0) return;
  --stats_.pinned_slots;
  if (!slot.listed) FreeLocked(slot);
}

}  // namespace mooncake::hotcache

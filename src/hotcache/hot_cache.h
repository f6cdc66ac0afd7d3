// HotCache: copies of remote values in one block of memory, so that reading them again moves no
// bytes over the network. Policy only: it neither maps the memory nor talks to anybody, and its
// user says what time it is.
//
// The memory is cut into blocks of equal size, and a block into slots of one size: the block
// itself, or a half, a quarter ... of it, so that small values do not waste a block. The block
// is the largest value that is kept. A full class gives up its least recently used slot, or
// takes over the block that has been idle longest, whichever is older.
//
// A slot is reachable only through a Pin, and holding a pin is holding the bytes: a pinned slot
// is not reused, also when its entry is replaced or erased meanwhile. A slot's generation tells
// its uses apart.
//
// Thread-safe. Short critical sections; bytes are copied outside of them.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "mooncake/bytes.h"

namespace mooncake::hotcache {

// What a copy belongs to. Domains (worker scopes) and scopes (tenant, domain, object_set) never
// see each other's entries.
struct CacheKey {
  uint32_t domain = 0;
  uint32_t scope = 0;
  uint64_t hash = 0;  // Of the key.
  std::string_view key;
};

class HotCache {
 private:
  struct Slot;

 public:
  // Move-only handle of a slot in use.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept
        : cache_(std::exchange(other.cache_, nullptr)),
          slot_(std::exchange(other.slot_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      std::swap(cache_, other.cache_);
      std::swap(slot_, other.slot_);
      return *this;
    }
    ~Pin() {
      if (slot_ != nullptr) cache_->Unpin(*slot_);
    }
    explicit operator bool() const { return slot_ != nullptr; }
    MutableBytes bytes() const;  // Exactly the value.
    uint64_t offset() const;     // Into the memory of the cache.
    uint64_t generation() const;
    uint64_t version() const;  // 0: not published.
    uint64_t checksum() const;
    uint64_t filled_ms() const;  // When the value was known to be current.

   private:
    friend class HotCache;
    Pin(HotCache* cache, Slot* slot) : cache_(cache), slot_(slot) {}
    HotCache* cache_ = nullptr;
    Slot* slot_ = nullptr;
  };

  // REQUIRES: 0 < block_bytes <= memory.size(); the memory outlives the cache and its pins.
  HotCache(MutableBytes memory, uint64_t block_bytes);
  ~HotCache();  // REQUIRES: no pin is left.
  HotCache(const HotCache&) = delete;
  HotCache& operator=(const HotCache&) = delete;

  uint64_t block_bytes() const { return block_bytes_; }

  // The copy of the key, whatever its version; counts as a use. Empty: none.
  Pin Find(const CacheKey& key);
  // A slot to fill, which nobody finds before Publish. Empty: an empty value or one larger than
  // a block, or everything is pinned.
  Pin Reserve(uint64_t size);
  // Makes a filled slot the key's entry, unless a newer version already is. `slot` stays valid.
  // REQUIRES: version > 0.
  void Publish(const CacheKey& key, const Pin& slot, uint64_t version, uint64_t checksum,
               uint64_t now_ms);
  // The authority has just said that the entry is still the current version.
  void Confirm(const Pin& slot, uint64_t now_ms);
  // Forgets the key, in every domain.
  void Erase(uint32_t scope, uint64_t hash, std::string_view key);
  void EraseScope(uint32_t scope);

  struct Stats {
    uint64_t entries = 0;
    uint64_t bytes = 0;  // Of the values of the entries.
    uint64_t pinned_slots = 0;
    uint64_t evictions = 0;
  };
  Stats stats() const;

 private:
  using Recency = std::list<Slot*>;  // Most recently used first.
  struct Block;
  struct Slot {
    Block* block = nullptr;
    uint64_t offset = 0;
    uint64_t generation = 0;
    uint64_t size = 0;
    uint64_t version = 0;
    uint64_t checksum = 0;
    uint64_t filled_ms = 0;
    uint64_t used_tick = 0;
    uint32_t pins = 0;
    bool listed = false;  // It is an entry: in index_ and in the recency list of its class.
    uint32_t domain = 0;
    uint32_t scope = 0;
    uint64_t hash = 0;
    std::string key;
    Recency::iterator recency;
  };
  struct Block {
    uint64_t offset = 0;
    int size_class = 0;
    uint32_t pins = 0;  // Of all its slots.
    uint64_t used_tick = 0;
    std::vector<Slot> slots;
    std::list<Block*>::iterator recency;
  };
  struct Class {
    uint64_t slot_bytes = 0;
    std::vector<Slot*> free;
    Recency recent;
  };

  int ClassOf(uint64_t size) const;
  static uint64_t IndexOf(uint32_t scope, uint64_t hash) { return hash ^ (uint64_t{scope} << 40); }
  Slot* FindLocked(const CacheKey& key) MC_REQUIRES(mu_);
  Slot* TakeLocked(int size_class) MC_REQUIRES(mu_);
  Slot* IdlestLocked(Class& of) MC_REQUIRES(mu_);
  Block* IdlestBlockLocked() MC_REQUIRES(mu_);
  void CutLocked(Block& block, int size_class) MC_REQUIRES(mu_);
  void UncutLocked(Block& block) MC_REQUIRES(mu_);
  void TouchLocked(Slot& slot) MC_REQUIRES(mu_);
  void PinLocked(Slot& slot) MC_REQUIRES(mu_);
  // Takes the entry out of the index; its slot becomes free with its last pin.
  void UnlistLocked(Slot& slot) MC_REQUIRES(mu_);
  void FreeLocked(Slot& slot) MC_REQUIRES(mu_);
  void Unpin(Slot& slot);

  const MutableBytes memory_;
  const uint64_t block_bytes_;
  mutable base::Mutex mu_;
  std::vector<Block> blocks_ MC_GUARDED_BY(mu_);
  std::vector<Block*> uncut_ MC_GUARDED_BY(mu_);
  std::list<Block*> block_recency_ MC_GUARDED_BY(mu_);  // Cut blocks, most recently used first.
  std::vector<Class> classes_ MC_GUARDED_BY(mu_);       // Class k: block_bytes >> k.
  std::unordered_multimap<uint64_t, Slot*> index_ MC_GUARDED_BY(mu_);
  uint64_t tick_ MC_GUARDED_BY(mu_) = 0;
  uint64_t generation_ MC_GUARDED_BY(mu_) = 0;
  Stats stats_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::hotcache

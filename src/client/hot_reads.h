// HotReads: reading through the local hot cache. Only what came from another node is kept, and
// by default a copy is used only after the key's authority has said, in the round trip that a
// read takes anyway, that its version is still the current one. Thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hotcache/hot_cache.h"
#include "mooncake/config.h"
#include "node/read_op.h"
#include "obs/metrics.h"
#include "runtime/mapped_memory.h"
#include "runtime/runtime.h"

namespace mooncake::client {

class HotReads {
 public:
  // REQUIRES: config.local_hot_cache_size > 0. kInvalidArgument: smaller than one block.
  static Result<std::unique_ptr<HotReads>> Open(const StoreConfig& config, Runtime& runtime,
                                                Metrics& metrics);
  HotReads(const StoreConfig& config, MappedMemory memory, Runtime& runtime, Metrics& metrics);

  // As node::ReadValues, which it calls for what it cannot answer alone.
  std::vector<Result<uint64_t>> Read(node::Core& core, const node::ReadRequest& request,
                                     uint32_t domain);

  // After an own write or removal.
  void Erase(const node::KeyRef& ref) { cache_.Erase(ref.scope, ref.hash, ref.key); }
  void EraseScope(node::ScopeIndex scope) { cache_.EraseScope(scope); }
  void RefreshGauges();

  // --- For readers that take slots instead of copies ----------------------------------------
  const MappedMemory& memory() const { return memory_; }
  hotcache::HotCache& cache() { return cache_; }
  static hotcache::CacheKey KeyOf(const node::KeyRef& ref, uint32_t domain) {
    return {domain, ref.scope, ref.hash, ref.key};
  }
  // As HotCache::Reserve; the slot's memory is ready to be filled.
  hotcache::HotCache::Pin Reserve(uint64_t size);
  // Whether the copy may be used without asking.
  bool Trusts(const hotcache::HotCache::Pin& pin) {
    return !validate_ && runtime_.NowMs() - pin.filled_ms() <= max_age_ms_;
  }
  void NoteHit(const hotcache::HotCache::Pin& pin, bool confirmed);
  void NoteStale() { stale_.Increment(); }
  void NoteMiss() { miss_.Increment(); }
  uint64_t NowMs() { return runtime_.NowMs(); }

 private:
  class Pass;

  const MappedMemory memory_;
  hotcache::HotCache cache_;
  const bool validate_;
  const uint64_t max_age_ms_;
  Runtime& runtime_;
  Metrics& metrics_;
  Counter& hit_;
  Counter& miss_;
  Counter& stale_;
};

}  // namespace mooncake::client

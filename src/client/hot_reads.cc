#include "client/hot_reads.h"

#include <fmt/format.h>

#include <algorithm>

#include "node/payload.h"

namespace mooncake::client {

using hotcache::HotCache;

// One read of a batch.
class HotReads::Pass {
 public:
  Pass(HotReads& reads, node::Core& core, const node::ReadRequest& request, uint32_t domain)
      : reads_(reads),
        core_(core),
        request_(request),
        domain_(domain),
        pins_(request.items.size()),
        allocated_(request.items.size()) {
    for (size_t i = 0; i < request.items.size(); ++i) results_.emplace_back(uint64_t{0});
  }

  std::vector<Result<uint64_t>> Run() {
    std::vector<size_t> ask;
    for (size_t i = 0; i < pins_.size(); ++i) {
      pins_[i] = reads_.cache_.Find(KeyOf(request_.items[i].ref, domain_));
      if (pins_[i] && reads_.Trusts(pins_[i]) && UseCopy(i, false)) continue;
      ask.push_back(i);
    }
    std::vector<size_t> again = Ask(ask);
    // A copy that turned out bad; it has been forgotten.
    if (!again.empty()) Ask(again);
    return std::move(results_);
  }

 private:
  // Returns the items whose copy could not be used after all.
  std::vector<size_t> Ask(const std::vector<size_t>& index) {
    std::vector<size_t> again;
    if (index.empty()) return again;
    std::vector<node::ReadItem> items;
    for (size_t i : index) {
      items.push_back(request_.items[i]);
      items.back().known = pins_[i] ? pins_[i].version() : 0;
    }
    node::ReadRequest asked{items, request_.ranged, {}, request_.deadline_ms, {}, true};
    if (request_.allocate) {
      asked.allocate = [&](size_t k, uint64_t size) {
        return allocated_[index[k]] = request_.allocate(index[k], size);
      };
    }
    if (request_.adopt) {
      asked.adopt = [&](size_t k, node::ExtentPin pin) {
        request_.adopt(index[k], std::move(pin));
      };
    }
    auto results = node::ReadValues(core_, asked);
    for (size_t k = 0; k < index.size(); ++k) {
      const size_t i = index[k];
      if (results[k].ok() && items[k].unchanged) {
        if (!UseCopy(i, true)) again.push_back(i);
        continue;
      }
      if (pins_[i]) Forget(i);
      if (results[k].ok()) Keep(i, items[k], *results[k]);
      request_.items[i].version = items[k].version;
      request_.items[i].checksum = items[k].checksum;
      results_[i] = std::move(results[k]);
    }
    return again;
  }

  void Forget(size_t i) {
    reads_.NoteStale();
    reads_.Erase(request_.items[i].ref);
    pins_[i] = {};
  }

  // False: the copy is not what it was.
  bool UseCopy(size_t i, bool confirmed) {
    const node::ReadItem& item = request_.items[i];
    const HotCache::Pin& pin = pins_[i];
    ConstBytes bytes = pin.bytes();
    if (request_.ranged) {
      if (item.offset > bytes.size() || item.limit > bytes.size() - item.offset) {
        results_[i] = TooSmall(fmt::format("range [{}, +{}) is outside the value of {} bytes",
                                           item.offset, item.limit, bytes.size()));
        return true;
      }
      bytes = bytes.subspan(item.offset, item.limit);
    }
    std::span<const MutableBytes> targets = item.targets;
    if (request_.allocate) {
      allocated_[i] = request_.allocate(i, bytes.size());
      if (allocated_[i]) targets = {&*allocated_[i], 1};
    }
    if (TotalSize(targets) < bytes.size()) {
      results_[i] =
          TooSmall(fmt::format("needs {} bytes, got {}", bytes.size(), TotalSize(targets)));
      return true;
    }
    const uint64_t checksum = node::CopyOut(bytes, targets);
    if (!request_.ranged && checksum != pin.checksum()) {
      Forget(i);
      return false;
    }
    reads_.NoteHit(pin, confirmed);
    request_.items[i].version = pin.version();
    request_.items[i].checksum = pin.checksum();
    results_[i] = uint64_t{bytes.size()};
    return true;
  }

  void Keep(size_t i, const node::ReadItem& item, uint64_t size) {
    if (request_.ranged || item.version == 0) return;
    reads_.NoteMiss();
    HotCache::Pin slot = reads_.Reserve(size);
    if (!slot) return;
    std::span<const MutableBytes> from = item.targets;
    if (allocated_[i]) from = {&*allocated_[i], 1};
    std::vector<ConstBytes> parts;
    uint64_t rest = size;
    for (MutableBytes part : from) {
      parts.push_back(part.first(std::min<uint64_t>(rest, part.size())));
      rest -= parts.back().size();
    }
    // The caller's memory may be written to by others: what is not the value is not kept.
    if (rest != 0 || node::CopyIn(parts, slot.bytes()) != item.checksum) return;
    reads_.cache_.Publish(KeyOf(item.ref, domain_), slot, item.version, item.checksum,
                          reads_.NowMs());
  }

  HotReads& reads_;
  node::Core& core_;
  const node::ReadRequest& request_;
  const uint32_t domain_;
  std::vector<Result<uint64_t>> results_;
  std::vector<HotCache::Pin> pins_;
  std::vector<std::optional<MutableBytes>> allocated_;
};

Result<std::unique_ptr<HotReads>> HotReads::Open(const StoreConfig& config, Runtime& runtime,
                                                 Metrics& metrics) {
  const uint64_t block = config.local_hot_block_size;
  if (block == 0 || config.local_hot_cache_size < block) {
    return InvalidArgument(fmt::format(
        "local_hot_cache_size is {}; allowed: 0, or at least local_hot_block_size, which is {}",
        config.local_hot_cache_size, block));
  }
  MC_TRY(MappedMemory memory, config.local_hot_cache_use_shm
                                  ? MappedMemory::MapShared(config.local_hot_cache_size, 0, true)
                                  : MappedMemory::Map(config.local_hot_cache_size, 0));
  return std::make_unique<HotReads>(config, std::move(memory), runtime, metrics);
}

HotReads::HotReads(const StoreConfig& config, MappedMemory memory, Runtime& runtime,
                   Metrics& metrics)
    : memory_(std::move(memory)),
      cache_(memory_.bytes(), config.local_hot_block_size),
      validate_(config.local_hot_cache_validate),
      max_age_ms_(config.local_hot_cache_max_age_ms),
      runtime_(runtime),
      metrics_(metrics),
      hit_(metrics.GetCounter("hot_cache_total", {{"result", "hit"}})),
      miss_(metrics.GetCounter("hot_cache_total", {{"result", "miss"}})),
      stale_(metrics.GetCounter("hot_cache_total", {{"result", "stale"}})) {}

std::vector<Result<uint64_t>> HotReads::Read(node::Core& core, const node::ReadRequest& request,
                                             uint32_t domain) {
  return Pass(*this, core, request, domain).Run();
}

HotCache::Pin HotReads::Reserve(uint64_t size) {
  HotCache::Pin slot = cache_.Reserve(size);
  if (slot) memory_.Prepare(slot.offset(), size);
  return slot;
}

void HotReads::NoteHit(const HotCache::Pin& pin, bool confirmed) {
  hit_.Increment();
  if (confirmed) cache_.Confirm(pin, NowMs());
}

void HotReads::RefreshGauges() {
  const HotCache::Stats stats = cache_.stats();
  metrics_.GetGauge("hot_cache_entries", {}).Set(static_cast<double>(stats.entries));
  metrics_.GetGauge("hot_cache_used_bytes", {}).Set(static_cast<double>(stats.bytes));
  metrics_.GetGauge("hot_cache_evictions", {}).Set(static_cast<double>(stats.evictions));
}

}  // namespace mooncake::client

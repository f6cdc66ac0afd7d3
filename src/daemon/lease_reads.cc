#include "daemon/lease_reads.h"

#include <fmt/format.h>

#include "client/dummy/side_channel.h"
#include "node/read_op.h"

namespace mooncake::daemon {

namespace {

using client::HotReads;
using hotcache::HotCache;

class LeaseOp {
 public:
  LeaseOp(client::LocalStore& store, Scratch& scratch, const LeaseRequest& request, Lease* lease)
      : store_(store),
        hot_(store.parts().hot.get()),
        in_place_(hot_ != nullptr && hot_->memory().fd() >= 0),
        scratch_(scratch),
        request_(request),
        lease_(*lease) {
    const size_t count = request.keys.size();
    results_.reserve(count);
    for (size_t i = 0; i < count; ++i) results_.emplace_back(Placed{});
    if (in_place_) known_.resize(count);
  }

  std::vector<Result<Placed>> Run(node::ScopeTable::Entry scope) {
    std::vector<node::ReadItem> items;
    std::vector<size_t> index;
    items.reserve(request_.keys.size());
    index.reserve(request_.keys.size());
    for (size_t i = 0; i < request_.keys.size(); ++i) {
      const node::KeyRef ref = node::MakeKeyRef(scope, request_.keys[i]);
      if (in_place_ && FindCopy(i, ref)) continue;
      node::ReadItem item{ref, {}, request_.limits[i], ranged() ? request_.offsets[i] : 0};
      item.known = Known(i) ? known_[i].version() : 0;
      items.push_back(item);
      index.push_back(i);
    }
    if (items.empty()) return std::move(results_);
    node::ReadRequest read{items, ranged(), {}, request_.deadline_ms, {}, true};
    read.allocate = [&](size_t k, uint64_t size) { return Allocate(index[k], items[k], size); };
    read.adopt = [&](size_t k, node::ExtentPin pin) { Adopt(index[k], items[k], std::move(pin)); };
    node::Core& core = store_.parts().node->core();
    const auto sizes = hot_ != nullptr && !in_place_ ? hot_->Read(core, read, request_.domain)
                                                     : node::ReadValues(core, read);
    for (size_t k = 0; k < items.size(); ++k) Settle(index[k], items[k], sizes[k]);
    return std::move(results_);
  }

 private:
  bool ranged() const { return !request_.offsets.empty(); }

  bool Known(size_t i) const { return in_place_ && known_[i]; }

  // True: the copy is trusted, and the item has its result.
  bool FindCopy(size_t i, const node::KeyRef& ref) {
    known_[i] = hot_->cache().Find(HotReads::KeyOf(ref, request_.domain));
    return known_[i] && hot_->Trusts(known_[i]) && UseCopy(i, false);
  }

  bool UseCopy(size_t i, bool confirmed) {
    HotCache::Pin& pin = known_[i];
    const uint64_t whole = pin.bytes().size();
    const uint64_t offset = ranged() ? request_.offsets[i] : 0;
    const uint64_t size = ranged() ? request_.limits[i] : whole;
    if (offset > whole || size > whole - offset || size > request_.limits[i]) {
      results_[i] = TooSmall(fmt::format("the value has {} bytes", whole));
      return true;
    }
    hot_->NoteHit(pin, confirmed);
    results_[i] = Placed{client::kHotCacheArea,
                         pin.offset() + offset,
                         size,
                         pin.checksum(),
                         !ranged(),
                         ConstBytes(pin.bytes()).subspan(offset, size)};
    lease_.slots.push_back(std::move(pin));
    return true;
  }

  std::optional<MutableBytes> Allocate(size_t i, const node::ReadItem& item, uint64_t size) {
    if (slots_.empty()) {
      slots_.resize(request_.keys.size());
      buffers_.resize(request_.keys.size());
      short_of_memory_.resize(request_.keys.size());
    }
    short_of_memory_[i] = false;
    if (size > item.limit) return std::nullopt;
    slots_[i] = {};
    buffers_[i] = {};
    if (in_place_ && !ranged()) {
      slots_[i] = hot_->Reserve(size);
      if (slots_[i]) return slots_[i].bytes();
    }
    buffers_[i] = scratch_.Allocate(size);
    if (buffers_[i]) return buffers_[i].bytes();
    short_of_memory_[i] = true;
    return std::nullopt;
  }

  void Adopt(size_t i, const node::ReadItem& item, node::ExtentPin pin) {
    const node::Place place = pin->place();
    const uint64_t size = ranged() ? item.limit : pin->size();
    results_[i] = Placed{client::kSegmentAreas + place.segment,
                         place.offset + item.offset,
                         size,
                         pin->checksum(),
                         !ranged() && pin->has_checksum(),
                         ConstBytes(pin->data()).subspan(item.offset, size)};
    if (adopted_.empty()) {
      adopted_.resize(request_.keys.size());
      lease_.extents.reserve(request_.keys.size());
    }
    adopted_[i] = true;
    lease_.extents.push_back(std::move(pin));
  }

  void Settle(size_t i, const node::ReadItem& item, const Result<uint64_t>& size) {
    if (!adopted_.empty() && adopted_[i]) return;
    const bool allocated = !slots_.empty();
    if (!size.ok()) {
      if (Known(i)) Forget(item.ref);
      results_[i] = allocated && short_of_memory_[i] ? BackPressure("no scratch memory is free")
                                                     : size.error();
      return;
    }
    if (item.unchanged) {
      UseCopy(i, true);
      return;
    }
    if (Known(i)) Forget(item.ref);
    results_[i] = Placed{0, 0, *size, item.checksum, !ranged() && item.version != 0, {}};
    if (allocated) Place(i, item, &*results_[i]);  // Else an empty value.
  }

  void Place(size_t i, const node::ReadItem& item, Placed* placed) {
    if (slots_[i]) {
      placed->area = client::kHotCacheArea;
      placed->offset = slots_[i].offset();
      placed->bytes = slots_[i].bytes();
      if (item.version != 0) {
        hot_->NoteMiss();
        hot_->cache().Publish(HotReads::KeyOf(item.ref, request_.domain), slots_[i], item.version,
                              item.checksum, hot_->NowMs());
      }
      lease_.slots.push_back(std::move(slots_[i]));
    } else if (buffers_[i]) {
      if (in_place_ && item.version != 0) hot_->NoteMiss();
      placed->area = buffers_[i].area();
      placed->offset = buffers_[i].offset();
      placed->bytes = buffers_[i].bytes();
      lease_.buffers.push_back(std::move(buffers_[i]));
    }
  }

  void Forget(const node::KeyRef& ref) {
    hot_->NoteStale();
    hot_->Erase(ref);
  }

  client::LocalStore& store_;
  HotReads* const hot_;
  const bool in_place_;  // Clients read the hot cache where it is.
  Scratch& scratch_;
  const LeaseRequest& request_;
  Lease& lease_;
  std::vector<Result<Placed>> results_;
  std::vector<HotCache::Pin> known_;  // With in_place_.
  std::vector<HotCache::Pin> slots_;  // Empty until one item needs memory, as the next two.
  std::vector<Scratch::Buffer> buffers_;
  std::vector<bool> short_of_memory_;
  std::vector<bool> adopted_;  // Empty until one is.
};

template <typename T>
std::vector<Result<T>> All(size_t count, const Error& error) {
  std::vector<Result<T>> results;
  results.reserve(count);
  for (size_t i = 0; i < count; ++i) results.emplace_back(error);
  return results;
}

}  // namespace

std::vector<Result<Placed>> LeaseValues(client::LocalStore& store, Scratch& scratch,
                                        const LeaseRequest& request, Lease* lease) {
  base::Gate::Pass pass(store.parts().node->gate());
  if (!pass) return All<Placed>(request.keys.size(), InvalidState("the daemon is closing"));
  const auto scope = store.EntryFor(request.tenant);
  if (!scope) return All<Placed>(request.keys.size(), scope.error());
  client::CallMetrics::Call call(
      store.calls(), *store.parts().runtime,
      request.offsets.empty() ? client::Operation::kBatchGet : client::Operation::kGetIntoRanges);
  auto results = LeaseOp(store, scratch, request, lease).Run(*scope);
  for (const Result<Placed>& result : results) {
    call.Item(result);
    if (result.ok()) call.BytesOut(result->size);
  }
  return results;
}

}  // namespace mooncake::daemon

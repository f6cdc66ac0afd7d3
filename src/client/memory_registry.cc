#include "client/memory_registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

namespace mooncake::client {

Status RangeTable::Add(const void* data, size_t size) {
  const auto base = reinterpret_cast<uintptr_t>(data);
  if (base == 0 || size == 0 || size > UINTPTR_MAX - base) {
    return InvalidArgument(fmt::format(
        "register_buffer: pointer {:#x}, size {}: expected a non-null pointer and a size of at "
        "least 1 that does not wrap around",
        base, size));
  }
  if (!IsReadable(data, size)) {
    return InvalidArgument(fmt::format(
        "register_buffer: pointer {:#x}, size {}: the range is not readable memory of this "
        "process", base, size));
  }
  AddOwn(data, size);
  return Ok();
}

void RangeTable::AddOwn(const void* data, size_t size) {
  std::unique_lock lock(mu_);
  ranges_[reinterpret_cast<uintptr_t>(data)].push_back(size);
  largest_ = std::max(largest_, size);
}

Status RangeTable::Remove(const void* data) {
  const auto base = reinterpret_cast<uintptr_t>(data);
  std::unique_lock lock(mu_);
  auto found = ranges_.find(base);
  if (found == ranges_.end()) {
    return NotFound(fmt::format("unregister_buffer: pointer {:#x} is not registered", base));
  }
  found->second.pop_back();
  if (found->second.empty()) ranges_.erase(found);
  if (ranges_.empty()) largest_ = 0;
  return Ok();
}

bool RangeTable::Contains(const void* data, size_t size) const {
  const auto base = reinterpret_cast<uintptr_t>(data);
  if (size > UINTPTR_MAX - base) return false;
  std::shared_lock lock(mu_);
  // Ranges that start at or before `base`, nearest first, as far back as one could reach here.
  for (auto it = ranges_.upper_bound(base); it != ranges_.begin();) {
    --it;
    const uintptr_t before = base - it->first;
    if (before > largest_) return false;
    const size_t longest = *std::max_element(it->second.begin(), it->second.end());
    if (longest >= before && longest - before >= size) return true;
  }
  return false;
}

size_t RangeTable::size() const {
  std::shared_lock lock(mu_);
  return ranges_.size();
}

LocalPool::LocalPool(MappedMemory memory)
    : memory_(std::move(memory)), allocator_(memory_.bytes().size()) {}

Result<std::unique_ptr<LocalPool>> LocalPool::Open(uint64_t size, uint64_t hugepage_bytes) {
  MC_TRY(MappedMemory memory, MappedMemory::Map(size, hugepage_bytes));
  return std::unique_ptr<LocalPool>(new LocalPool(std::move(memory)));
}

std::optional<MutableBytes> LocalPool::TryAcquire(size_t size) {
  const auto offset = allocator_.Allocate(size);
  if (!offset) return std::nullopt;
  const MutableBytes lease = memory_.bytes().subspan(*offset, size);
  leases_.AddOwn(lease.data(), lease.size());
  return lease;
}

void LocalPool::Release(MutableBytes lease) {
  if (!leases_.Remove(lease.data()).ok()) return;  // Not one of ours, or not out any more.
  allocator_.Free(static_cast<uint64_t>(lease.data() - memory_.bytes().data()));
}

}  // namespace mooncake::client

#include "client/memory_registry.h"

#include <fmt/format.h>

#include <algorithm>

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
        "process",
        base, size));
  }
  AddOwn({data, size, IsWritable(data, size)});
  return Ok();
}

void RangeTable::AddOwn(const RegisteredRange& range) {
  base::MutexLock lock(mu_);
  auto next = std::make_shared<Ranges>(*ranges_.load());
  next->by_base[reinterpret_cast<uintptr_t>(range.data)].push_back(range);
  next->largest = std::max(next->largest, range.size);
  ranges_.store(std::move(next));
}

Error NotRegistered(const void* data, std::optional<size_t> size) {
  return NotFound(fmt::format("unregister_buffer: pointer {:#x}{} is not registered",
                              reinterpret_cast<uintptr_t>(data),
                              size ? fmt::format(" with size {}", *size) : ""));
}

Result<RegisteredRange> RangeTable::Remove(const void* data, std::optional<size_t> size) {
  base::MutexLock lock(mu_);
  auto next = std::make_shared<Ranges>(*ranges_.load());
  const auto found = next->by_base.find(reinterpret_cast<uintptr_t>(data));
  if (found == next->by_base.end()) return NotRegistered(data, size);
  std::vector<RegisteredRange>& ranges = found->second;
  const auto last = std::find_if(ranges.rbegin(), ranges.rend(), [&](const RegisteredRange& range) {
    return !size || range.size == *size;
  });
  if (last == ranges.rend()) return NotRegistered(data, size);
  const RegisteredRange removed = *last;
  ranges.erase(std::next(last).base());
  if (ranges.empty()) next->by_base.erase(found);
  if (next->by_base.empty()) next->largest = 0;
  ranges_.store(std::move(next));
  return removed;
}

std::vector<RegisteredRange> RangeTable::RemoveWithin(const void* data, size_t size) {
  const auto from = reinterpret_cast<uintptr_t>(data);
  const uintptr_t to = size > UINTPTR_MAX - from ? UINTPTR_MAX : from + size;
  std::vector<RegisteredRange> removed;
  base::MutexLock lock(mu_);
  auto next = std::make_shared<Ranges>(*ranges_.load());
  for (auto& [base, ranges] : next->by_base) {
    if (base >= to) break;
    std::erase_if(ranges, [&, base = base](const RegisteredRange& range) {
      const bool reaches = base >= from || range.size > from - base;
      if (reaches) removed.push_back(range);
      return reaches;
    });
  }
  if (removed.empty()) return removed;
  std::erase_if(next->by_base, [](const auto& entry) { return entry.second.empty(); });
  if (next->by_base.empty()) next->largest = 0;
  ranges_.store(std::move(next));
  return removed;
}

std::optional<ConstBytes> RangeTable::Find(const void* data, size_t size, bool writable) const {
  const auto base = reinterpret_cast<uintptr_t>(data);
  if (size > UINTPTR_MAX - base) return std::nullopt;
  const std::shared_ptr<const Ranges> ranges = ranges_.load();
  // Ranges that start at or before `base`, nearest first, as far back as one could reach here.
  for (auto it = ranges->by_base.upper_bound(base); it != ranges->by_base.begin();) {
    --it;
    const uintptr_t before = base - it->first;
    if (before > ranges->largest) break;
    size_t longest = 0;
    for (const RegisteredRange& range : it->second) {
      if (range.writable || !writable) longest = std::max(longest, range.size);
    }
    if (longest >= before && longest - before >= size) {
      return ConstBytes(static_cast<const std::byte*>(data) - before, longest);
    }
  }
  return std::nullopt;
}

size_t RangeTable::size() const { return ranges_.load()->by_base.size(); }

LocalPool::LocalPool(MappedMemory memory)
    : memory_(std::move(memory)), allocator_(memory_.bytes().size()) {}

Result<std::unique_ptr<LocalPool>> LocalPool::Open(uint64_t size, uint64_t hugepage_bytes) {
  MC_TRY(MappedMemory memory, MappedMemory::Map(size, hugepage_bytes));
  return std::make_unique<LocalPool>(std::move(memory));
}

std::optional<MutableBytes> LocalPool::TryAcquire(size_t size) {
  const auto offset = allocator_.Allocate(size);
  if (!offset) return std::nullopt;
  const MutableBytes lease = memory_.bytes().subspan(*offset, size);
  leases_.AddOwn({lease.data(), lease.size()});
  return lease;
}

void LocalPool::Release(MutableBytes lease) {
  if (!leases_.Remove(lease.data()).ok()) return;  // Not one of ours, or not out any more.
  allocator_.Free(static_cast<uint64_t>(lease.data() - memory_.bytes().data()));
}

Status AwaitCallers(base::Gate& gate, Runtime& runtime, uint64_t limit_ms) {
  constexpr int kYields = 100;  // Most calls end within that; then without burning a core.
  const auto wait = [&](auto done) -> Status {
    for (int tries = 0; !done(); ++tries) {
      if (runtime.NowMs() >= limit_ms) {
        return TransportError("calls that may use the memory are still running; try again");
      }
      if (tries < kYields) {
        runtime.Yield();
      } else if (runtime.Interrupted()) {
        return TransportError("interrupted while calls that may use the memory are running");
      } else {
        runtime.SleepMs(1);
      }
    }
    return Ok();
  };
  MC_RETURN_IF_ERROR(wait([&] { return gate.BeginTurn(); }));
  Status left = wait([&] { return gate.Left(gate.Resting()); });
  if (left.ok()) {
    const int side = gate.Turn();
    left = wait([&] { return gate.Left(side); });
  }
  gate.EndTurn();
  return left;
}

}  // namespace mooncake::client

#include "runtime/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace mooncake {

namespace {

constexpr int kCollapse = 25;              // MADV_COLLAPSE, which older headers lack.
constexpr uint64_t kUnitsPerRequest = 32;  // The kernel is busy for some 5 ms then.
constexpr uint32_t kFailuresMax = 10;      // From then on, one of 1,024 requests is made.

// Who has switched huge pages off altogether wants none; MADV_COLLAPSE would not look.
bool WantedHere() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string modes;
  std::getline(file, modes);
  return modes.find("[always]") != std::string::npos ||
         modes.find("[madvise]") != std::string::npos;
}

}  // namespace

void* HugePages::MapFile(int fd, uint64_t size, int protection) {
  const auto plainly = [&] { return mmap(nullptr, size, protection, MAP_SHARED, fd, 0); };
  if (size < kUnitBytes || size > UINT64_MAX - 2 * kUnitBytes) return plainly();
  const auto page = static_cast<uint64_t>(getpagesize());
  const uint64_t mapped = (size + page - 1) / page * page;
  // A place that is large enough to begin where it should.
  void* const place = mmap(nullptr, mapped + kUnitBytes, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (place == MAP_FAILED) return plainly();
  auto* const begin = static_cast<std::byte*>(place);
  const uint64_t before = kUnitBytes - reinterpret_cast<uintptr_t>(begin) % kUnitBytes;
  std::byte* const data = begin + before;
  const bool done = mmap(data, size, protection, MAP_SHARED | MAP_FIXED, fd, 0) != MAP_FAILED;
  if (!done) {
    munmap(place, mapped + kUnitBytes);
    return plainly();
  }
  munmap(begin, before);
  if (before < kUnitBytes) munmap(data + mapped, kUnitBytes - before);
  return data;
}

HugePages::HugePages(MutableBytes memory)
    : data_(memory.data()),
      units_(reinterpret_cast<uintptr_t>(memory.data()) % kUnitBytes == 0 && WantedHere()
                 ? memory.size() / kUnitBytes
                 : 0),
      used_(std::make_unique<std::atomic<uint64_t>[]>((units_ + 63) / 64)) {}

void HugePages::Prepare(uint64_t offset, uint64_t size) {
  if (size == 0) return;
  const uint64_t end = std::min(units_, (offset + size - 1) / kUnitBytes + 1);
  uint64_t first = 0;
  uint64_t count = 0;
  for (uint64_t unit = offset / kUnitBytes; unit < end; ++unit) {
    if (!TakeFirstUse(unit)) continue;
    if (count > 0 && (first + count != unit || count == kUnitsPerRequest)) {
      Collapse(first, count);
      count = 0;
    }
    if (count++ == 0) first = unit;
    // A unit without any page cannot be collapsed. The byte is the caller's own.
    *const_cast<volatile std::byte*>(data_ + std::max(offset, unit * kUnitBytes)) = std::byte{0};
  }
  if (count > 0) Collapse(first, count);
}

bool HugePages::TakeFirstUse(uint64_t unit) {
  std::atomic<uint64_t>& word = used_[unit / 64];
  const uint64_t bit = uint64_t{1} << unit % 64;
  // The kernel keeps pages and their contents in order; the bit orders nothing.
  if ((word.load(std::memory_order_relaxed) & bit) != 0) return false;
  return (word.fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
}

void HugePages::Collapse(uint64_t first, uint64_t count) {
  if (!MayAsk()) return;
  NoteResult(madvise(data_ + first * kUnitBytes, count * kUnitBytes, kCollapse) == 0);
}

bool HugePages::MayAsk() {
  uint32_t left = leave_out_.load(std::memory_order_relaxed);
  while (left > 0 && !leave_out_.compare_exchange_weak(left, left - 1, std::memory_order_relaxed)) {
  }
  return left == 0;
}

void HugePages::NoteResult(bool good) {
  if (good) {
    failed_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t failed = std::min(failed_.load(std::memory_order_relaxed) + 1, kFailuresMax);
  failed_.store(failed, std::memory_order_relaxed);
  leave_out_.store(uint32_t{1} << failed, std::memory_order_relaxed);
}

}  // namespace mooncake

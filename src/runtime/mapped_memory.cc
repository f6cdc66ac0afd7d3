#include "runtime/mapped_memory.h"

#include <fmt/format.h>
#include <linux/mman.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace mooncake {

Result<MappedMemory> MappedMemory::Map(uint64_t size, uint64_t hugepage_bytes) {
  MappedMemory memory;
  if (size == 0) return memory;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
  if (hugepage_bytes == 0) {
    flags |= MAP_NORESERVE;
  } else {
    flags |= MAP_HUGETLB | (hugepage_bytes == (1ULL << 30) ? MAP_HUGE_1GB : MAP_HUGE_2MB);
  }
  const uint64_t unit = hugepage_bytes == 0 ? 4096 : hugepage_bytes;
  if (size > UINT64_MAX - unit) return NoSpace(fmt::format("cannot map {} bytes", size));
  const uint64_t mapped = (size + unit - 1) / unit * unit;
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    const std::string reason = strerror(errno);
    if (hugepage_bytes == 0) {
      return NoSpace(fmt::format("cannot map {} bytes of memory: {}", mapped, reason));
    }
    return NoSpace(fmt::format(
        "cannot map {} huge pages of {} bytes: {}; reserve them with: sysctl -w "
        "vm.nr_hugepages={} (or /sys/kernel/mm/hugepages for 1 GiB pages)",
        mapped / unit, unit, reason, mapped / unit));
  }
  if (hugepage_bytes == 0) madvise(data, mapped, MADV_HUGEPAGE);  // A hint; may fail.
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = size;
  memory.mapped_ = mapped;
  return memory;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

}  // namespace mooncake

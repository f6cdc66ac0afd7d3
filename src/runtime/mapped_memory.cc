#include "runtime/mapped_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/memfd.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/memory_limit.h"

namespace mooncake {

namespace {

constexpr uint64_t kLimitedBytesMin = 16ULL << 20;  // Nobody is given less than that.

// Before memory that is touched later is mapped: whether it can ever be there.
Status CheckSize(uint64_t size, uint64_t hugepage_bytes) {
  if (size < kLimitedBytesMin || hugepage_bytes > 0) return Ok();  // Huge pages do not count.
  return CheckMemoryLimits(size, LimitCheck::kEver, MemoryLimits());
}

// What an error of mmap says about the limit of the process's addresses.
std::string AddressLimit() {
  rlimit limit = {};
  if (errno != ENOMEM || getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  // Short, as it travels in an answer of 103 characters.
  return fmt::format(" (ulimit -v: {} bytes)", limit.rlim_cur);
}

}  // namespace

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
  MC_RETURN_IF_ERROR(CheckSize(size, hugepage_bytes));
  void* data = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) {
    const std::string reason = strerror(errno) + AddressLimit();
    if (hugepage_bytes == 0) {
      return NoSpace(fmt::format("cannot map {} bytes of memory: {}", mapped, reason));
    }
    return NoSpace(
        fmt::format("cannot map {} huge pages of {} bytes: {}; reserve them with: sysctl -w "
                    "vm.nr_hugepages={} (or /sys/kernel/mm/hugepages for 1 GiB pages)",
                    mapped / unit, unit, reason, mapped / unit));
  }
  if (hugepage_bytes == 0) madvise(data, mapped, MADV_HUGEPAGE);  // A hint; may fail.
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = size;
  memory.mapped_ = mapped;
  return memory;
}

Result<MappedMemory> MappedMemory::MapShared(uint64_t size, uint64_t hugepage_bytes,
                                             bool only_we_write) {
  MappedMemory memory;
  if (size == 0) return memory;
  const uint64_t unit = hugepage_bytes == 0 ? 4096 : hugepage_bytes;
  if (size > static_cast<uint64_t>(INT64_MAX) - unit) {
    return NoSpace(fmt::format("cannot map {} bytes", size));
  }
  MC_RETURN_IF_ERROR(CheckSize(size, hugepage_bytes));
  unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  if (hugepage_bytes > 0) {
    flags |= MFD_HUGETLB | (hugepage_bytes == (1ULL << 30) ? MFD_HUGE_1GB : MFD_HUGE_2MB);
  }
  memory.size_ = size;
  memory.mapped_ = (size + unit - 1) / unit * unit;
  memory.fd_ = memfd_create("mooncake_store", flags);
  void* data = MAP_FAILED;
  if (memory.fd_ >= 0 && ftruncate(memory.fd_, static_cast<off_t>(memory.mapped_)) == 0) {
    constexpr int kReadWrite = PROT_READ | PROT_WRITE;
    data = hugepage_bytes == 0
               ? HugePages::MapFile(memory.fd_, memory.mapped_, kReadWrite)
               : mmap(nullptr, memory.mapped_, kReadWrite, MAP_SHARED, memory.fd_, 0);
  }
  if (data == MAP_FAILED) {
    return NoSpace(fmt::format("cannot map {} bytes of shared memory in pages of {}: {}{}",
                               memory.mapped_, unit, strerror(errno) + AddressLimit(),
                               hugepage_bytes == 0 ? ""
                                                   : "; reserve them with: sysctl -w "
                                                     "vm.nr_hugepages=N"));
  }
  memory.data_ = static_cast<std::byte*>(data);
  if (hugepage_bytes == 0) {
    madvise(data, memory.mapped_, MADV_HUGEPAGE);  // A hint; may fail.
    memory.huge_ = std::make_unique<HugePages>(MutableBytes(memory.data_, memory.mapped_));
  }
#ifndef F_SEAL_FUTURE_WRITE
  constexpr int F_SEAL_FUTURE_WRITE = 0x10;
#endif
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  // Kernels before 5.1 do not know the seal against new writers; peers of one user trust them.
  if (only_we_write) (void)fcntl(memory.fd_, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
  if (fcntl(memory.fd_, F_ADD_SEALS, seals | F_SEAL_SEAL) != 0) {
    return NoSpace(fmt::format("cannot seal shared memory: {}", strerror(errno)));
  }
  return memory;
}

Result<MappedMemory> MappedMemory::MapDescriptor(int fd, uint64_t size, bool writable) {
  MappedMemory memory;
  memory.fd_ = fd;  // Closed on all ways out.
  struct stat file = {};
  if (fstat(fd, &file) != 0 || !S_ISREG(file.st_mode)) {
    return InvalidArgument("the descriptor is not a memory file");
  }
  if (size == 0 || static_cast<uint64_t>(file.st_size) < size) {
    return InvalidArgument(fmt::format("the memory file has {} bytes, not {}", file.st_size, size));
  }
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgument("the memory file is not sealed against shrinking");
  }
  void* data = HugePages::MapFile(fd, size, writable ? PROT_READ | PROT_WRITE : PROT_READ);
  if (data == MAP_FAILED) {
    return NoSpace(fmt::format("cannot map {} bytes of a memory file: {}", size,
                               strerror(errno) + AddressLimit()));
  }
  memory.data_ = static_cast<std::byte*>(data);
  memory.size_ = memory.mapped_ = size;
  close(std::exchange(memory.fd_, -1));  // The mapping does without.
  return memory;
}

namespace {

// Asks the kernel to copy one byte: unlike a load, that fails instead of raising a signal.
bool CanRead(const std::byte* address) {
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{const_cast<std::byte*>(address), 1};
  if (process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1) return true;
  return errno != EFAULT && errno != ENOMEM;  // Forbidden here (seccomp): mincore has to do.
}

}  // namespace

bool IsReadable(const void* data, size_t size) {
  constexpr uintptr_t kPage = 4096;
  constexpr size_t kStep = 1ULL << 30;
  const auto base = reinterpret_cast<uintptr_t>(data);
  if (size == 0 || base == 0 || size > UINTPTR_MAX - kPage - base) return false;
  const auto* const first = static_cast<const std::byte*>(data);
  const size_t before = base % kPage;  // mincore wants whole pages.
  std::vector<unsigned char> pages(std::min(kStep, size + 2 * kPage) / kPage + 1);
  for (size_t at = 0; at < size + before; at += kStep) {
    auto* const page = const_cast<std::byte*>(first - before + at);
    if (mincore(page, std::min(kStep, size + before - at), pages.data()) != 0) return false;
  }
  return CanRead(first) && CanRead(first + size - 1);
}

bool IsWritable(const void* data, size_t size) {
  uintptr_t at = reinterpret_cast<uintptr_t>(data);
  if (size > UINTPTR_MAX - at) return false;
  const uintptr_t end = at + size;
  std::ifstream maps("/proc/self/maps");
  if (!maps) return true;
  std::string line;
  // Lines by address: "from-to rwxp ...", in hexadecimal.
  while (at < end && std::getline(maps, line)) {
    char* rest = nullptr;
    const uintptr_t from = std::strtoull(line.c_str(), &rest, 16);
    if (*rest != '-') break;
    const uintptr_t to = std::strtoull(rest + 1, &rest, 16);
    if (to <= at) continue;
    if (from > at || std::strlen(rest) < 3 || rest[2] != 'w') break;
    at = to;
  }
  return at >= end;
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      mapped_(std::exchange(other.mapped_, 0)),
      fd_(std::exchange(other.fd_, -1)),
      huge_(std::move(other.huge_)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  std::swap(fd_, other.fd_);
  std::swap(huge_, other.huge_);
  return *this;
}

void MappedMemory::Prepare(uint64_t offset, uint64_t size) const {
  if (huge_) huge_->Prepare(offset, size);
}

void MappedMemory::Discard() const {
  if (data_ != nullptr) madvise(data_, mapped_, MADV_DONTNEED);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
  if (fd_ >= 0) close(fd_);
}

}  // namespace mooncake

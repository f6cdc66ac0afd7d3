// MappedMemory: memory from the kernel, touched lazily, in huge pages where the kernel has some,
// and on request behind a descriptor that another process can map too.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "mooncake/bytes.h"
#include "mooncake/result.h"
#include "runtime/huge_pages.h"

namespace mooncake {

// Whether every page of the range is mapped and its two ends can be read, right now. For memory
// that a caller names by address; costs about a millisecond per GiB.
bool IsReadable(const void* data, size_t size);
// Whether all of the range is mapped for writing, right now, as the kernel's list of the process's
// mappings has it; nothing is touched. True where that list cannot be read.
bool IsWritable(const void* data, size_t size);

class MappedMemory {
 public:
  MappedMemory() = default;
  // `hugepage_bytes` 0: ordinary pages; else 2 MiB or 1 GiB, and the size is rounded up to it.
  // kNoSpace with the size, the kernel's reason and what to change. Never dies of SIGBUS
  // later: huge pages are reserved here.
  static Result<MappedMemory> Map(uint64_t size, uint64_t hugepage_bytes);
  // As Map, with a descriptor to pass on. Sealed: neither side can shrink or grow it. With
  // `only_we_write`, whoever gets the descriptor can read and no more.
  static Result<MappedMemory> MapShared(uint64_t size, uint64_t hugepage_bytes, bool only_we_write);
  // Maps the first `size` bytes of a descriptor from another process, which is closed.
  // kInvalidArgument: not a memory file of that size, or not sealed against shrinking (reading
  // what its owner has cut off would end this process).
  static Result<MappedMemory> MapDescriptor(int fd, uint64_t size, bool writable);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  // To be called before a range of shared memory comes into use, for the sake of speed: see
  // HugePages::Prepare. Nothing to do for memory of another kind. Thread-safe.
  // REQUIRES: nobody else uses the range. Its bytes are not kept.
  void Prepare(uint64_t offset, uint64_t size) const;
  // The contents are gone and the pages go back to the kernel; the range stays mapped.
  void Discard() const;

  MutableBytes bytes() const { return {data_, size_}; }  // The size that was asked for.
  int fd() const { return fd_; }                         // -1: private memory.

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t mapped_ = 0;
  int fd_ = -1;
  std::unique_ptr<HugePages> huge_;  // Of MapShared in ordinary pages.
};

}  // namespace mooncake

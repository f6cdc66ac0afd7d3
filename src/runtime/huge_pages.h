// Huge pages behind shared memory, such as private memory gets by itself.
//
// A memory file has pages of 4 KiB unless the administrator has changed shmem_enabled. Since
// Linux 6.1 a process can ask for a huge page in place of them (MADV_COLLAPSE), whatever that
// setting is. Here it asks when a unit of 2 MiB comes into use: then there is one page to copy,
// and it takes an eighth of the time of 512 page faults. See docs/adr/0015-huge-shared-pages.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "mooncake/bytes.h"

namespace mooncake {

// Thread-safe.
class HugePages {
 public:
  static constexpr uint64_t kUnitBytes = 2ULL << 20;

  // Maps the first `size` bytes of a memory file, shared, at an address at which its units can
  // be huge pages, of whichever process asked for them. Results as of mmap: MAP_FAILED and errno.
  static void* MapFile(int fd, uint64_t size, int protection);

  // `memory` is what MapFile returned, writable, and outlives this.
  explicit HugePages(MutableBytes memory);

  // To be called before a range is filled: puts huge pages behind those of its units that come
  // into use with it. A kernel that has none leaves ordinary pages; then fewer and fewer units
  // ask. Makes at most two system calls per 64 MiB that come into use, none otherwise.
  // REQUIRES: nobody else uses the range. Its bytes are not kept.
  void Prepare(uint64_t offset, uint64_t size);

 private:
  bool TakeFirstUse(uint64_t unit);
  void Collapse(uint64_t first, uint64_t count);
  bool MayAsk();
  void NoteResult(bool good);

  std::byte* const data_;
  const uint64_t units_;  // Whole ones: what is left at the end has ordinary pages.
  std::unique_ptr<std::atomic<uint64_t>[]> used_;  // A bit per unit.
  // Heuristics, so their order does not matter: requests that failed in a row, and how many to
  // leave out before the next.
  std::atomic<uint32_t> failed_{0};
  std::atomic<uint32_t> leave_out_{0};
};

}  // namespace mooncake

// ExtentAllocator: hands out ranges of one segment. Two-level segregated free lists (TLSF,
// Masmano et al. 2004): O(1) allocate and free, good fit, immediate coalescing. All state lives
// outside the segment; the segment's memory is never touched. Thread-safe: one lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace mooncake::allocator {

inline constexpr uint64_t kAlignment = 64;

class ExtentAllocator {
 public:
  // Capacity is rounded down to kAlignment.
  explicit ExtentAllocator(uint64_t capacity_bytes);
  ~ExtentAllocator();
  ExtentAllocator(const ExtentAllocator&) = delete;
  ExtentAllocator& operator=(const ExtentAllocator&) = delete;

  // The offset of a free range of at least `size` bytes, kAlignment-aligned; none when no free
  // range fits. Size 0 counts as 1. Sizes above the capacity: none. As the search is bounded, a
  // range less than 1/64 larger than `size` can be missed when it hides behind 64 others of its
  // size class and no larger range is free.
  std::optional<uint64_t> Allocate(uint64_t size);
  // Gives a range back. False: `offset` is not the start of an allocated range (nothing done).
  bool Free(uint64_t offset);

  uint64_t capacity_bytes() const;
  uint64_t used_bytes() const;  // In allocated ranges, rounding included.
  // What Allocate can serve now: at least 63/64 of the largest free range.
  uint64_t largest_free() const;
  uint64_t allocated_count() const;
  // The number of bytes that Allocate(size) takes out of the free space.
  static uint64_t RoundUp(uint64_t size);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mooncake::allocator

// Scratch: the daemon's memory for values on their way from other nodes to dummy clients, which
// map it to read. Grows in chunks on demand; all but the first go when they are empty.
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "allocator/extent_allocator.h"
#include "base/mutex.h"
#include "mooncake/result.h"
#include "runtime/mapped_memory.h"

namespace mooncake::daemon {

class Scratch {
 private:
  struct Chunk {
    uint64_t area = 0;
    MappedMemory memory;
    std::unique_ptr<allocator::ExtentAllocator> space;
  };

 public:
  // `first_bytes` are kept for ever, `bytes_max` is the most at any time.
  Scratch(uint64_t first_bytes, uint64_t bytes_max)
      : first_bytes_(first_bytes), bytes_max_(bytes_max) {}

  // Move-only; its bytes are the holder's while it lives.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { *this = std::move(other); }
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    explicit operator bool() const { return scratch_ != nullptr; }
    uint64_t area() const { return chunk_->area; }
    uint64_t offset() const { return offset_; }
    MutableBytes bytes() const { return bytes_; }

   private:
    friend class Scratch;
    Scratch* scratch_ = nullptr;
    std::shared_ptr<Chunk> chunk_;
    uint64_t offset_ = 0;
    MutableBytes bytes_;
  };
  // Empty: bytes_max is reached, or the kernel has no more.
  Buffer Allocate(uint64_t size);

  // The memory behind an area, as a shared pointer so that it is there while it is sent; nullptr:
  // no such area (any more).
  std::shared_ptr<const MappedMemory> Area(uint64_t area);
  uint64_t bytes() const;

 private:
  Buffer AllocateLocked(uint64_t size) MC_REQUIRES(mu_);
  std::shared_ptr<Chunk> GrowLocked(uint64_t size) MC_REQUIRES(mu_);
  void Free(const std::shared_ptr<Chunk>& chunk, uint64_t offset);

  const uint64_t first_bytes_;
  const uint64_t bytes_max_;
  mutable base::Mutex mu_;
  std::map<uint64_t, std::shared_ptr<Chunk>> chunks_ MC_GUARDED_BY(mu_);
  uint64_t bytes_ MC_GUARDED_BY(mu_) = 0;
  uint64_t next_ MC_GUARDED_BY(mu_) = 0;
};

}  // namespace mooncake::daemon

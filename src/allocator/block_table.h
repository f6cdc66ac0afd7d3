// What ExtentAllocator knows of each range, kept outside the segment: descriptors in an arena
// that never moves them, and an index from the offset of an allocated range to its descriptor.
// 36 bytes a range. Nothing here is ever resized as a whole, so that no single call pays for
// the growth of a table of millions. Not thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace mooncake::allocator {

using BlockIndex = uint32_t;
inline constexpr BlockIndex kNoBlock = ~BlockIndex{0};

struct Block {
  uint64_t offset = 0;
  uint64_t size : 63 = 0;
  uint64_t allocated : 1 = 0;
  BlockIndex left = kNoBlock;  // The ranges before and behind it in the segment.
  BlockIndex right = kNoBlock;
  // Free: neighbours in the list of its size class. Allocated: `next` chains the offset index.
  BlockIndex next = kNoBlock;
  BlockIndex previous = kNoBlock;
};
static_assert(sizeof(Block) == 32);

class BlockArena {
 public:
  // A fresh descriptor, or kNoBlock when 2^32 - 1 are in use.
  BlockIndex New();
  void Recycle(BlockIndex index);
  Block& operator[](BlockIndex index) {
    return (*chunks_[index / kChunkBlocks])[index % kChunkBlocks];
  }
  const Block& operator[](BlockIndex index) const {
    return (*chunks_[index / kChunkBlocks])[index % kChunkBlocks];
  }

 private:
  static constexpr size_t kChunkBlocks = 1024;
  using Chunk = std::array<Block, kChunkBlocks>;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  BlockIndex used_ = 0;             // Descriptors ever handed out.
  BlockIndex recycled_ = kNoBlock;  // Chained by `next`.
};

// A hash table with chains through Block::next, grown by one bucket at a time (linear hashing,
// Litwin 1980).
class OffsetIndex {
 public:
  explicit OffsetIndex(BlockArena& blocks);
  void Insert(BlockIndex index);
  // Takes the block that starts at `offset` out of the index; kNoBlock when there is none.
  BlockIndex Take(uint64_t offset);
  size_t size() const { return size_; }

 private:
  static constexpr size_t kChunkBuckets = 4096;
  using Chunk = std::array<BlockIndex, kChunkBuckets>;

  BlockIndex& Bucket(size_t bucket) {
    return (*chunks_[bucket / kChunkBuckets])[bucket % kChunkBuckets];
  }
  size_t BucketOf(uint64_t offset) const;
  void Grow();

  BlockArena& blocks_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  size_t size_ = 0;
  size_t bucket_count_ = 0;
  size_t round_ = 1;  // The largest power of two that is <= bucket_count_.
};

}  // namespace mooncake::allocator

#include "allocator/block_table.h"

#include "base/hash.h"

namespace mooncake::allocator {

BlockIndex BlockArena::New() {
  BlockIndex index = recycled_;
  if (index != kNoBlock) {
    recycled_ = (*this)[index].next;
    (*this)[index] = Block{};
    return index;
  }
  if (used_ == kNoBlock) return kNoBlock;
  if (used_ / kChunkBlocks == chunks_.size()) chunks_.push_back(std::make_unique<Chunk>());
  return used_++;
}

void BlockArena::Recycle(BlockIndex index) {
  (*this)[index].next = recycled_;
  recycled_ = index;
}

OffsetIndex::OffsetIndex(BlockArena& blocks) : blocks_(blocks) { Grow(); }

size_t OffsetIndex::BucketOf(uint64_t offset) const {
  // Buckets from bucket_count_ on do not exist yet: theirs are still with the bucket that the
  // next bit of the hash would have told apart.
  uint64_t hash = base::Mix64(offset);
  size_t bucket = hash & (2 * round_ - 1);
  return bucket < bucket_count_ ? bucket : hash & (round_ - 1);
}

void OffsetIndex::Grow() {
  if (bucket_count_ % kChunkBuckets == 0) {
    chunks_.push_back(std::make_unique<Chunk>());
    chunks_.back()->fill(kNoBlock);
  }
  size_t added = bucket_count_++;
  if (added == 0) return;
  BlockIndex chain = Bucket(added - round_);
  Bucket(added - round_) = kNoBlock;
  while (chain != kNoBlock) {  // Bounded by the chain, whose expected length is one.
    BlockIndex next = blocks_[chain].next;
    BlockIndex& head = Bucket(BucketOf(blocks_[chain].offset));
    blocks_[chain].next = head;
    head = chain;
    chain = next;
  }
  if (bucket_count_ == 2 * round_) round_ *= 2;
}

void OffsetIndex::Insert(BlockIndex index) {
  if (++size_ > bucket_count_) Grow();
  BlockIndex& head = Bucket(BucketOf(blocks_[index].offset));
  blocks_[index].next = head;
  head = index;
}

BlockIndex OffsetIndex::Take(uint64_t offset) {
  BlockIndex* link = &Bucket(BucketOf(offset));
  while (*link != kNoBlock) {
    BlockIndex index = *link;
    Block& block = blocks_[index];
    if (block.offset == offset) {
      *link = block.next;
      block.next = kNoBlock;
      --size_;
      return index;
    }
    link = &block.next;
  }
  return kNoBlock;
}

}  // namespace mooncake::allocator

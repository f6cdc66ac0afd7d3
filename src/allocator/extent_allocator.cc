#include "allocator/extent_allocator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "allocator/block_table.h"
#include "base/mutex.h"

namespace mooncake::allocator {
namespace {

// Size classes: each power of two is cut into 64, so a class spans less than 1/64 of its sizes.
constexpr int kSplitBits = 6;
constexpr size_t kSplits = size_t{1} << kSplitBits;
constexpr int kAlignmentBits = std::countr_zero(kAlignment);
constexpr size_t kRows = 64 - kAlignmentBits - kSplitBits + 1;
// How far the list of the request's own class is searched for a range that fits. Ranges of
// higher classes fit without a search.
constexpr int kOwnClassLooksMax = 64;

struct SizeClass {
  size_t row;
  size_t column;
};

// Up to 64 units a class is one size. `size` is a positive multiple of kAlignment.
SizeClass ClassOf(uint64_t size) {
  uint64_t units = size >> kAlignmentBits;
  if (units < kSplits) return {0, units};
  int shift = std::bit_width(units) - 1 - kSplitBits;
  return {static_cast<size_t>(shift) + 1, (units >> shift) & (kSplits - 1)};
}

}  // namespace

struct ExtentAllocator::State {
  explicit State(uint64_t capacity_bytes);

  std::optional<uint64_t> AllocateLocked(uint64_t size) MC_REQUIRES(mu);
  bool FreeLocked(uint64_t offset) MC_REQUIRES(mu);
  BlockIndex FindLocked(uint64_t size) const MC_REQUIRES(mu);
  BlockIndex FirstAboveLocked(SizeClass own) const MC_REQUIRES(mu);
  uint64_t LargestFreeLocked() const MC_REQUIRES(mu);
  void ListLocked(BlockIndex index) MC_REQUIRES(mu);
  void UnlistLocked(BlockIndex index) MC_REQUIRES(mu);
  void MergeRightLocked(BlockIndex index) MC_REQUIRES(mu);

  const uint64_t capacity;
  base::Mutex mu;
  BlockArena blocks MC_GUARDED_BY(mu);
  OffsetIndex allocated MC_GUARDED_BY(mu){blocks};
  uint64_t used MC_GUARDED_BY(mu) = 0;
  // heads[row][column] is the list of free ranges of a class; the bits say which have any.
  std::array<std::array<BlockIndex, kSplits>, kRows> heads MC_GUARDED_BY(mu);
  std::array<uint64_t, kRows> columns MC_GUARDED_BY(mu){};
  uint64_t rows MC_GUARDED_BY(mu) = 0;
};

ExtentAllocator::State::State(uint64_t capacity_bytes)
    : capacity(capacity_bytes / kAlignment * kAlignment) {
  for (auto& row : heads) row.fill(kNoBlock);
  if (capacity == 0) return;
  BlockIndex whole = blocks.New();
  blocks[whole].size = capacity;
  base::MutexLock lock(mu);
  ListLocked(whole);
}

void ExtentAllocator::State::ListLocked(BlockIndex index) {
  Block& block = blocks[index];
  SizeClass size_class = ClassOf(block.size);
  BlockIndex& head = heads[size_class.row][size_class.column];
  if (head != kNoBlock && blocks[head].size > block.size) {
    // Second place: large ranges gather at the front, where a search looks first.
    block.previous = head;
    block.next = blocks[head].next;
    if (block.next != kNoBlock) blocks[block.next].previous = index;
    blocks[head].next = index;
    return;
  }
  block.previous = kNoBlock;
  block.next = head;
  if (head != kNoBlock) blocks[head].previous = index;
  head = index;
  columns[size_class.row] |= uint64_t{1} << size_class.column;
  rows |= uint64_t{1} << size_class.row;
}

void ExtentAllocator::State::UnlistLocked(BlockIndex index) {
  Block& block = blocks[index];
  if (block.next != kNoBlock) blocks[block.next].previous = block.previous;
  if (block.previous != kNoBlock) {
    blocks[block.previous].next = block.next;
    return;
  }
  SizeClass size_class = ClassOf(block.size);
  heads[size_class.row][size_class.column] = block.next;
  if (block.next != kNoBlock) return;
  columns[size_class.row] &= ~(uint64_t{1} << size_class.column);
  if (columns[size_class.row] == 0) rows &= ~(uint64_t{1} << size_class.row);
}

// The first range of the lowest class above `own` that has one. Every range there fits.
BlockIndex ExtentAllocator::State::FirstAboveLocked(SizeClass own) const {
  // Two shifts, as one by the width of the type is undefined.
  uint64_t wider = columns[own.row] & (~uint64_t{0} << own.column << 1);
  if (wider != 0) return heads[own.row][static_cast<size_t>(std::countr_zero(wider))];
  uint64_t higher = rows & (~uint64_t{0} << own.row << 1);
  if (higher == 0) return kNoBlock;
  auto row = static_cast<size_t>(std::countr_zero(higher));
  return heads[row][static_cast<size_t>(std::countr_zero(columns[row]))];
}

BlockIndex ExtentAllocator::State::FindLocked(uint64_t size) const {
  SizeClass own = ClassOf(size);
  BlockIndex index = heads[own.row][own.column];
  // Equal objects leave equal holes, so the first one of the own class usually fits best.
  if (index != kNoBlock && blocks[index].size >= size) return index;
  BlockIndex above = FirstAboveLocked(own);
  if (above != kNoBlock) return above;
  for (int looks = 0; looks < kOwnClassLooksMax && index != kNoBlock; ++looks) {
    if (blocks[index].size >= size) return index;
    index = blocks[index].next;
  }
  return kNoBlock;
}

// Must look no further than FindLocked, so that what it promises can be had.
uint64_t ExtentAllocator::State::LargestFreeLocked() const {
  if (rows == 0) return 0;
  auto row = static_cast<size_t>(std::bit_width(rows) - 1);
  auto column = static_cast<size_t>(std::bit_width(columns[row]) - 1);
  BlockIndex index = heads[row][column];
  uint64_t largest = 0;
  for (int looks = 0; looks < kOwnClassLooksMax && index != kNoBlock; ++looks) {
    largest = std::max<uint64_t>(largest, blocks[index].size);
    index = blocks[index].next;
  }
  return largest;
}

std::optional<uint64_t> ExtentAllocator::State::AllocateLocked(uint64_t size) {
  BlockIndex index = FindLocked(size);
  if (index == kNoBlock) return std::nullopt;
  if (blocks[index].size > size) {
    BlockIndex rest = blocks.New();
    if (rest == kNoBlock) return std::nullopt;
    UnlistLocked(index);
    Block& block = blocks[index];
    Block& tail = blocks[rest];
    tail.offset = block.offset + size;
    tail.size = block.size - size;
    tail.left = index;
    tail.right = block.right;
    if (tail.right != kNoBlock) blocks[tail.right].left = rest;
    block.right = rest;
    block.size = size;
    ListLocked(rest);
  } else {
    UnlistLocked(index);
  }
  blocks[index].allocated = 1;
  allocated.Insert(index);
  used += size;
  return blocks[index].offset;
}

// Swallows the range behind `index`, which must be there and free.
void ExtentAllocator::State::MergeRightLocked(BlockIndex index) {
  Block& block = blocks[index];
  BlockIndex right = block.right;
  block.size += blocks[right].size;
  block.right = blocks[right].right;
  if (block.right != kNoBlock) blocks[block.right].left = index;
  blocks.Recycle(right);
}

bool ExtentAllocator::State::FreeLocked(uint64_t offset) {
  BlockIndex index = allocated.Take(offset);
  if (index == kNoBlock) return false;
  used -= blocks[index].size;
  blocks[index].allocated = 0;
  BlockIndex right = blocks[index].right;
  if (right != kNoBlock && !blocks[right].allocated) {
    UnlistLocked(right);
    MergeRightLocked(index);
  }
  BlockIndex left = blocks[index].left;
  if (left != kNoBlock && !blocks[left].allocated) {
    UnlistLocked(left);
    MergeRightLocked(left);
    index = left;
  }
  ListLocked(index);
  return true;
}

ExtentAllocator::ExtentAllocator(uint64_t capacity_bytes)
    : state_(std::make_unique<State>(capacity_bytes)) {}

ExtentAllocator::~ExtentAllocator() = default;

uint64_t ExtentAllocator::RoundUp(uint64_t size) {
  constexpr uint64_t kLargest = std::numeric_limits<uint64_t>::max() / kAlignment * kAlignment;
  if (size > kLargest) return kLargest;
  return (std::max<uint64_t>(size, 1) + kAlignment - 1) / kAlignment * kAlignment;
}

std::optional<uint64_t> ExtentAllocator::Allocate(uint64_t size) {
  if (size > state_->capacity) return std::nullopt;
  base::MutexLock lock(state_->mu);
  return state_->AllocateLocked(RoundUp(size));
}

bool ExtentAllocator::Free(uint64_t offset) {
  base::MutexLock lock(state_->mu);
  return state_->FreeLocked(offset);
}

uint64_t ExtentAllocator::capacity_bytes() const { return state_->capacity; }

uint64_t ExtentAllocator::used_bytes() const {
  base::MutexLock lock(state_->mu);
  return state_->used;
}

uint64_t ExtentAllocator::largest_free() const {
  base::MutexLock lock(state_->mu);
  return state_->LargestFreeLocked();
}

uint64_t ExtentAllocator::allocated_count() const {
  base::MutexLock lock(state_->mu);
  return state_->allocated.size();
}

}  // namespace mooncake::allocator

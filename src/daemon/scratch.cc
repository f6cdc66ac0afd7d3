#include "daemon/scratch.h"

#include <algorithm>

#include "client/dummy/side_channel.h"

namespace mooncake::daemon {

namespace {
constexpr uint64_t kChunkBytes = 64ULL << 20;
}  // namespace

Scratch::Buffer& Scratch::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(scratch_, other.scratch_);
  std::swap(chunk_, other.chunk_);
  std::swap(offset_, other.offset_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Scratch::Buffer::~Buffer() {
  if (scratch_ != nullptr) scratch_->Free(chunk_, offset_);
}

Scratch::Buffer Scratch::Allocate(uint64_t size) {
  Buffer buffer;
  {
    base::MutexLock lock(mu_);
    buffer = AllocateLocked(size);
    if (!buffer && GrowLocked(size)) buffer = AllocateLocked(size);
  }
  if (buffer) buffer.chunk_->memory.Prepare(buffer.offset_, size);
  return buffer;
}

Scratch::Buffer Scratch::AllocateLocked(uint64_t size) {
  Buffer buffer;
  for (auto& [area, chunk] : chunks_) {
    const std::optional<uint64_t> offset = chunk->space->Allocate(size);
    if (!offset) continue;
    buffer.scratch_ = this;
    buffer.chunk_ = chunk;
    buffer.offset_ = *offset;
    buffer.bytes_ = chunk->memory.bytes().subspan(*offset, size);
    break;
  }
  return buffer;
}

std::shared_ptr<Scratch::Chunk> Scratch::GrowLocked(uint64_t size) {
  const bool first = chunks_.empty() || chunks_.begin()->first >= client::kPassingAreas;
  const uint64_t bytes =
      std::max(first ? first_bytes_ : kChunkBytes, allocator::ExtentAllocator::RoundUp(size));
  if (bytes > bytes_max_ || bytes_ > bytes_max_ - bytes) return nullptr;
  Result<MappedMemory> memory = MappedMemory::MapShared(bytes, 0, true);
  if (!memory) return nullptr;
  auto chunk = std::make_shared<Chunk>();
  // A first chunk that a large value made larger than it should be does not stay.
  const bool stays = first && bytes == first_bytes_;
  chunk->area = (stays ? client::kScratchAreas : client::kPassingAreas) + next_++;
  chunk->memory = *std::move(memory);
  chunk->space = std::make_unique<allocator::ExtentAllocator>(bytes);
  chunks_[chunk->area] = chunk;
  bytes_ += bytes;
  return chunk;
}

void Scratch::Free(const std::shared_ptr<Chunk>& chunk, uint64_t offset) {
  base::MutexLock lock(mu_);
  chunk->space->Free(offset);
  if (chunk->area < client::kPassingAreas || chunk->space->allocated_count() > 0) return;
  if (chunks_.erase(chunk->area) > 0) bytes_ -= chunk->memory.bytes().size();
}

std::shared_ptr<const MappedMemory> Scratch::Area(uint64_t area) {
  base::MutexLock lock(mu_);
  const auto found = chunks_.find(area);
  if (found == chunks_.end()) return nullptr;
  return {found->second, &found->second->memory};
}

uint64_t Scratch::bytes() const {
  base::MutexLock lock(mu_);
  return bytes_;
}

}  // namespace mooncake::daemon

// A position in a list of memory pieces, and the iovecs that continue from it. Used for what is
// sent (ConstBytes) and for where received bytes go (MutableBytes; nullptr drops).
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "mooncake/bytes.h"

namespace mooncake::transfer {

// Entries of one gathering or scattering system call: 256 pieces of 1 KiB fill a chunk.
inline constexpr size_t kIovecsMax = 256;

// Where dropped bytes land. One per thread that receives.
inline constexpr size_t kScratchSize = 64u << 10;
char* DropScratch();

template <typename Bytes>  // ConstBytes or MutableBytes.
class PieceCursor {
 public:
  PieceCursor() = default;
  explicit PieceCursor(std::span<const Bytes> pieces) : pieces_(pieces), left_(TotalSize(pieces)) {}

  uint64_t left() const { return left_; }

  // Fills `iovecs` with what comes next, at most `bytes_max` bytes. Returns the number of
  // entries and adds their bytes to `bytes`. Does not move the cursor.
  size_t Fill(std::span<iovec> iovecs, size_t bytes_max, size_t& bytes) const {
    size_t count = 0, taken = 0, offset = offset_;
    for (size_t i = index_; i < pieces_.size() && count < iovecs.size() && taken < bytes_max;) {
      size_t size = std::min(pieces_[i].size() - offset, bytes_max - taken);
      void* data = const_cast<std::byte*>(pieces_[i].data());
      if (data == nullptr) {
        data = DropScratch();
        size = std::min(size, kScratchSize);
      } else {
        data = static_cast<std::byte*>(data) + offset;
      }
      if (size > 0) iovecs[count++] = {data, size};
      taken += size;
      offset += size;
      if (offset == pieces_[i].size()) ++i, offset = 0;
    }
    bytes += taken;
    return count;
  }

  // Moves on by `bytes`; calls visit(piece index, part) for each part passed that has memory.
  // REQUIRES: bytes <= left().
  template <typename Visit>
  void Advance(uint64_t bytes, Visit&& visit) {
    left_ -= bytes;
    while (bytes > 0) {
      const Bytes& piece = pieces_[index_];
      const size_t size = std::min<uint64_t>(piece.size() - offset_, bytes);
      if (size > 0 && piece.data() != nullptr) visit(index_, piece.subspan(offset_, size));
      bytes -= size;
      offset_ += size;
      if (offset_ == piece.size()) ++index_, offset_ = 0;
    }
  }
  void Advance(uint64_t bytes) {
    Advance(bytes, [](size_t, const Bytes&) {});
  }

  // Copies `bytes` to where the cursor is and moves on, with visit as above.
  // REQUIRES: bytes.size() <= left(); Bytes is MutableBytes.
  template <typename Visit>
  void CopyIn(std::string_view bytes, Visit&& visit) {
    const char* from = bytes.data();
    uint64_t size = bytes.size();
    left_ -= size;
    while (size > 0) {
      const Bytes& piece = pieces_[index_];
      const size_t part_size = std::min<uint64_t>(piece.size() - offset_, size);
      if (part_size > 0 && piece.data() != nullptr) {
        const Bytes part = piece.subspan(offset_, part_size);
        std::memcpy(part.data(), from, part_size);
        visit(index_, part);
      }
      from += part_size;
      size -= part_size;
      offset_ += part_size;
      if (offset_ == piece.size()) ++index_, offset_ = 0;
    }
  }

 private:
  std::span<const Bytes> pieces_;
  uint64_t left_ = 0;
  size_t index_ = 0;   // The piece that comes next,
  size_t offset_ = 0;  // and how much of it is done.
};

}  // namespace mooncake::transfer

// Views of memory that somebody else owns. The owner keeps the memory alive and unchanged for
// the duration of the call that takes the view, and no longer: a call that has returned, for
// whatever reason, never touches it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace mooncake {

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

inline ConstBytes BytesOf(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline ConstBytes BytesAt(const void* data, size_t size) {
  return {static_cast<const std::byte*>(data), size};
}
inline MutableBytes MutableBytesAt(void* data, size_t size) {
  return {static_cast<std::byte*>(data), size};
}
inline std::string_view TextOf(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The number of bytes in all pieces together.
inline uint64_t TotalSize(std::span<const ConstBytes> pieces) {
  uint64_t total = 0;
  for (ConstBytes piece : pieces) total += piece.size();
  return total;
}
inline uint64_t TotalSize(std::span<const MutableBytes> pieces) {
  uint64_t total = 0;
  for (MutableBytes piece : pieces) total += piece.size();
  return total;
}

}  // namespace mooncake

// InputBuffer: bytes that have arrived and are not consumed yet. It grows only as bytes arrive,
// so a length in a header allocates nothing by itself. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>

namespace mooncake::transfer {

class InputBuffer {
 public:
  // What one receive takes in at most while a header is awaited. Large enough that a small
  // request or reply is one system call; what is payload in it costs a copy.
  static constexpr size_t kFirstSize = 16u << 10;
  // Memory above this is given back between frames.
  static constexpr size_t kKeptSizeMax = 64u << 10;

  std::string_view View() const { return {bytes_.get() + begin_, end_ - begin_}; }
  size_t size() const { return end_ - begin_; }
  bool empty() const { return begin_ == end_; }

  // Free space to receive into, not more than is useful for a total of `wanted` bytes; never
  // empty while size() < wanted. Moves what View() showed.
  std::span<char> Room(size_t wanted);
  void Commit(size_t size) { end_ += size; }  // `size` bytes were written into Room.
  void Consume(size_t size) {
    begin_ += size;
    if (begin_ == end_) begin_ = end_ = 0;
  }
  // REQUIRES: empty(). Gives memory back: what is above kKeptSizeMax, or all.
  void Trim(bool all);

 private:
  std::unique_ptr<char[]> bytes_;
  size_t capacity_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace mooncake::transfer

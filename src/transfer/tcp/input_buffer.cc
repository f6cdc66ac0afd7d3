#include "transfer/tcp/input_buffer.h"

#include <algorithm>
#include <utility>

namespace mooncake::transfer {

std::span<char> InputBuffer::Room(size_t wanted) {
  const size_t size = end_ - begin_;
  if (capacity_ < kFirstSize || (size == capacity_ && wanted > size)) {
    // Doubling: after n bytes arrived, at most 2 n are allocated.
    const size_t capacity = std::max(kFirstSize, std::min(wanted, capacity_ * 2));
    auto bytes = std::make_unique_for_overwrite<char[]>(capacity);
    if (size > 0) std::memcpy(bytes.get(), bytes_.get() + begin_, size);
    bytes_ = std::move(bytes);
    capacity_ = capacity;
    begin_ = 0;
    end_ = size;
  } else if (begin_ > 0) {
    std::memmove(bytes_.get(), bytes_.get() + begin_, size);
    begin_ = 0;
    end_ = size;
  }
  return {bytes_.get() + end_, capacity_ - end_};
}

void InputBuffer::Trim(bool all) {
  if (!all && capacity_ <= kKeptSizeMax) return;
  bytes_.reset();
  capacity_ = begin_ = end_ = 0;
}

}  // namespace mooncake::transfer

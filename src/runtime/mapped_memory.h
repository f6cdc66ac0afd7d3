// MappedMemory: anonymous memory from the kernel, touched lazily, optionally in huge pages.
#pragma once

#include <cstdint>
#include <utility>

#include "mooncake/bytes.h"
#include "mooncake/result.h"

namespace mooncake {

class MappedMemory {
 public:
  MappedMemory() = default;
  // `hugepage_bytes` 0: ordinary pages; else 2 MiB or 1 GiB, and the size is rounded up to it.
  // kNoSpace with the size, the kernel's reason and what to change. Never dies of SIGBUS
  // later: huge pages are reserved here.
  static Result<MappedMemory> Map(uint64_t size, uint64_t hugepage_bytes);
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&& other) noexcept;
  ~MappedMemory();

  MutableBytes bytes() const { return {data_, size_}; }  // The size that was asked for.

 private:
  std::byte* data_ = nullptr;
  uint64_t size_ = 0;
  uint64_t mapped_ = 0;
};

}  // namespace mooncake

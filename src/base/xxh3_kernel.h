// XXH3 compiled for one instruction set, as a table of functions. A stream's state has the same
// layout in every kernel.
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::base {

struct Xxh3Kernel {
  const char* name;
  uint64_t (*hash)(const void* data, size_t size);
  void (*reset)(void* state);
  void (*update)(void* state, const void* data, size_t size);
  uint64_t (*digest)(const void* state);
  // Copies, and hashes what it writes: also when somebody changes the source meanwhile.
  uint64_t (*copy)(void* target, const void* source, size_t size);
};

// What a stream's state needs; each kernel asserts it.
inline constexpr size_t kXxh3StateSize = 576;
inline constexpr size_t kXxh3StateAlignment = 64;

extern const Xxh3Kernel kXxh3Plain;   // What every processor of this architecture can run.
extern const Xxh3Kernel kXxh3Avx2;    // Only on x86-64.
extern const Xxh3Kernel kXxh3Avx512;  // Only on x86-64.

// The kernels that this processor can run, the fastest first (rank 0). nullptr: no more.
const Xxh3Kernel* Xxh3KernelAt(size_t rank);
const Xxh3Kernel& BestXxh3Kernel();

}  // namespace mooncake::base

#include "base/xxh3_kernel.h"

namespace mooncake::base {

const Xxh3Kernel* Xxh3KernelAt(size_t rank) {
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  const bool avx2 = __builtin_cpu_supports("avx2") != 0;
  if (avx512 && rank-- == 0) return &kXxh3Avx512;
  if (avx2 && rank-- == 0) return &kXxh3Avx2;
  return rank == 0 ? &kXxh3Plain : nullptr;
}

const Xxh3Kernel& BestXxh3Kernel() {
  static const Xxh3Kernel& best = *Xxh3KernelAt(0);
  return best;
}

}  // namespace mooncake::base

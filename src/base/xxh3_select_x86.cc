#include "base/xxh3_kernel.h"

namespace mooncake::base {

const Xxh3Kernel& BestXxh3Kernel() {
  static const Xxh3Kernel& best = [&]() -> const Xxh3Kernel& {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return kXxh3Avx512;
    if (__builtin_cpu_supports("avx2")) return kXxh3Avx2;
    return kXxh3Plain;
  }();
  return best;
}

}  // namespace mooncake::base

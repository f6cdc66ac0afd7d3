#include "base/xxh3_kernel.h"

namespace mooncake::base {

const Xxh3Kernel* Xxh3KernelAt(size_t rank) { return rank == 0 ? &kXxh3Plain : nullptr; }

const Xxh3Kernel& BestXxh3Kernel() { return kXxh3Plain; }

}  // namespace mooncake::base

// See xxh3_kernel.inc.
#define MC_XXH3_KERNEL kXxh3Avx2
#define MC_XXH3_NAME "avx2"
#include "base/xxh3_kernel.inc"

// See xxh3_kernel.inc.
#define MC_XXH3_KERNEL kXxh3Avx512
#define MC_XXH3_NAME "avx512"
#include "base/xxh3_kernel.inc"

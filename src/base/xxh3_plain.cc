// See xxh3_kernel.inc.
#define MC_XXH3_KERNEL kXxh3Plain
#define MC_XXH3_NAME "plain"
#include "base/xxh3_kernel.inc"

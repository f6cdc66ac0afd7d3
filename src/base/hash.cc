#include "base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mooncake::base {

uint64_t Hash64(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace mooncake::base

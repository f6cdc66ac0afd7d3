// Well-mixed 64-bit hashes for routing. Stable across processes, builds and versions: nodes
// must agree on them.
#pragma once

#include <cstdint>
#include <string_view>

namespace mooncake::base {

// XXH3 with a seed.
uint64_t Hash64(std::string_view text, uint64_t seed = 0);

// A bijective finaliser (the 64-bit mixer of SplitMix64, Steele et al. 2014).
constexpr uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  x ^= x >> 31;
  return x;
}

}  // namespace mooncake::base

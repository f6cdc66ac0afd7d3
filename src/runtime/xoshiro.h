// xoshiro256** (Blackman and Vigna 2018): fast, 256 bits of state, passes the usual batteries.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "base/hash.h"

namespace mooncake::runtime {

class Xoshiro {
 public:
  explicit Xoshiro(uint64_t seed) {
    // SplitMix64, as the authors advise: a state of zeros would stay zero.
    for (uint64_t& word : state_) word = base::Mix64(seed += 0x9e3779b97f4a7c15ULL);
  }

  uint64_t Next() {
    const uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    const uint64_t shifted = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= shifted;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

 private:
  std::array<uint64_t, 4> state_;
};

}  // namespace mooncake::runtime

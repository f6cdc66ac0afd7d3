// Weighted rendezvous hashing in integers. Every node must come to the same order, so nothing
// here depends on a math library, a compiler's use of fused instructions or a rounding mode:
// the score -weight / ln(u) is turned round into the cost -log2(u) / weight in fixed point, and
// the lowest cost wins. The numbers are part of the protocol between nodes.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/hash.h"

namespace mooncake::routing {

__extension__ using Uint128 = unsigned __int128;

namespace internal {

inline constexpr int kLogBits = 50;    // Fraction bits of a logarithm.
inline constexpr int kTableBits = 10;  // The logarithm is linear between 2^10 exact points.
inline constexpr size_t kTableSize = size_t{1} << kTableBits;

// log2 of `mantissa` / 2^63, which is in [1, 2), bit by bit: squaring doubles the logarithm.
constexpr uint64_t Log2OfMantissa(uint64_t mantissa) {
  Uint128 x = mantissa;
  uint64_t log = 0;
  for (int bit = 0; bit < kLogBits; ++bit) {
    x = (x * x) >> 63;
    log <<= 1;
    if ((x >> 64) != 0) {
      x >>= 1;
      log |= 1;
    }
  }
  return log;
}

constexpr std::array<uint64_t, kTableSize + 1> MakeLog2Table() {
  std::array<uint64_t, kTableSize + 1> table{};
  for (uint64_t i = 0; i < kTableSize; ++i) {
    table[i] = Log2OfMantissa((kTableSize + i) << (63 - kTableBits));
  }
  table[kTableSize] = uint64_t{1} << kLogBits;
  return table;
}

inline constexpr auto kLog2Table = MakeLog2Table();

}  // namespace internal

// -log2((hash | 1) / 2^64) with kLogBits fraction bits, at most 2^56. Falls with `hash`; off by
// less than 0.1 % of its value, near zero too, as the line between two points there ends in it.
constexpr uint64_t NegativeLog2(uint64_t hash) {
  constexpr int kRestBits = 63 - internal::kTableBits;
  int zeros = std::countl_zero(hash | 1);
  uint64_t mantissa = (hash | 1) << zeros;
  size_t index = (mantissa >> kRestBits) & (internal::kTableSize - 1);
  uint64_t rest = mantissa & ((uint64_t{1} << kRestBits) - 1);
  uint64_t low = internal::kLog2Table[index];
  uint64_t step = internal::kLog2Table[index + 1] - low;
  uint64_t log = low + static_cast<uint64_t>((Uint128{step} * rest) >> kRestBits);
  return (static_cast<uint64_t>(zeros + 1) << internal::kLogBits) - log;
}

// One that competes for points (slots).
struct Contender {
  uint64_t seed = 0;      // From its name.
  uint64_t handicap = 0;  // 2^20 / weight.
};

inline constexpr double kWeightMin = 1.0 / 1024;
inline constexpr double kWeightMax = 1024;
inline constexpr uint64_t kHandicapMax = uint64_t{1} << 30;  // Of kWeightMin.

// Weights outside [kWeightMin, kWeightMax] are moved to the nearest end; no number counts as 1.
Contender MakeContender(std::string_view name, double weight);

// An odd multiplier spreads neighbouring points over all bits before they meet a seed.
constexpr uint64_t SpreadPoint(uint64_t point) { return point * 0x9e3779b97f4a7c15ULL; }
constexpr uint64_t HashOf(uint64_t seed, uint64_t spread_point) {
  return base::Mix64(seed ^ spread_point);
}

// Falls with `hash`. At most 2^56 * 2^30, so 23 bits must go.
constexpr uint64_t CostOfHash(uint64_t handicap, uint64_t hash) {
  return static_cast<uint64_t>((Uint128{NegativeLog2(hash)} * handicap) >> 23);
}

// The contender with the lowest cost wins the point.
constexpr uint64_t CostOf(const Contender& contender, uint64_t point) {
  return CostOfHash(contender.handicap, HashOf(contender.seed, SpreadPoint(point)));
}

// The least hash that costs no more than `cost_max`, exactly; the largest of all if none does.
uint64_t LeastHashWithin(uint64_t handicap, uint64_t cost_max);

// Which part of all points costs the contender no more than that: an estimate, not to be used
// where nodes must agree.
double ShareWithin(const Contender& contender, uint64_t cost_max);

}  // namespace mooncake::routing

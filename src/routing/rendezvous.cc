#include "routing/rendezvous.h"

#include <algorithm>
#include <cmath>

namespace mooncake::routing {

Contender MakeContender(std::string_view name, double weight) {
  if (std::isnan(weight)) weight = 1.0;
  weight = std::clamp(weight, kWeightMin, kWeightMax);
  // One division and a truncation: the same in IEEE 754 on every machine.
  auto handicap = static_cast<uint64_t>(1'048'576.0 / weight);
  return {.seed = base::Hash64(name), .handicap = handicap};
}

uint64_t LeastHashWithin(uint64_t handicap, uint64_t cost_max) {
  uint64_t low = 0;
  uint64_t high = ~uint64_t{0};
  while (low < high) {  // 64 steps at most.
    const uint64_t middle = low + (high - low) / 2;
    if (CostOfHash(handicap, middle) <= cost_max) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

double ShareWithin(const Contender& contender, uint64_t cost_max) {
  // The logarithm to the base of 2 that the cost stands for, undone.
  const double unit = std::ldexp(static_cast<double>(contender.handicap), internal::kLogBits - 23);
  return 1 - std::exp2(-static_cast<double>(cost_max) / unit);
}

}  // namespace mooncake::routing

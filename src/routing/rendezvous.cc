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

}  // namespace mooncake::routing

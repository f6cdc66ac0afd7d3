// Whether the live nodes of a quiet simulated cluster agree with each other to the byte.
#pragma once

#include <string>
#include <vector>

#include "support/sim_node.h"

namespace mooncake::testing {

//  - All have the same view, and each slot is served by its first rank and by nobody else.
//  - Extents do not overlap; their sizes add up to the used bytes; none is reserved.
//  - Each live extent is named by the route of its key, and each route's replicas are there.
// What is not so, one line each.
std::vector<std::string> CheckAccounting(const std::vector<SimNode*>& nodes);

}  // namespace mooncake::testing

// Differences between two views, slot by slot. Pure functions.
#pragma once

#include <vector>

#include "routing/view.h"

namespace mooncake::routing {

// The slots whose rank 0 is `self` in `after` but was not in `before`, ascending. Another epoch
// of the same stable_id is somebody else: it comes without the routes.
std::vector<Slot> GainedSlots(const ClusterView& before, const ClusterView& after,
                              const NodeId& self);

// The other way round: those that `self` had in `before` and no longer has in `after`.
std::vector<Slot> LostSlots(const ClusterView& before, const ClusterView& after,
                            const NodeId& self);

}  // namespace mooncake::routing

// Takeover: what a node does when a view gives it slots or takes some away.
//
// Gained slots are pulled from whoever may have served them (the former first rank, the next
// ranks, draining nodes), which fence themselves. Where the one that served last does not
// answer with the whole truth, the owners of bytes are asked for their inventory: routes are
// soft state that the bytes can always rebuild, the newest version winning. Mirrors, and what
// others had, fill in for owners that did not answer. Requests for a slot are told to retry
// until its takeover is done.
#pragma once

#include <vector>

#include "node/arrivals.h"
#include "node/core.h"

namespace mooncake::node {

// Runs on the membership's refresher thread, before `after` becomes the view.
void ApplyView(Core& core, Arrivals& arrivals, const routing::ClusterView& before,
               const routing::ClusterView& after);

}  // namespace mooncake::node

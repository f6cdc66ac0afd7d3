// Placement: which owners a value may go to, best first.
#pragma once

#include <string>
#include <vector>

#include "mooncake/store.h"
#include "node/core.h"

namespace mooncake::node {

struct Candidate {
  routing::NodeIndex node = routing::kNoNode;  // kNoNode: this node.
  std::string segment;                         // Empty: any of the node's.
};

struct Placement {
  std::vector<Candidate> candidates;  // Distinct nodes.
  uint32_t copies = 1;
  // The first so many candidates are hard preferences: as many copies as they allow have to be
  // on them.
  uint32_t hard = 0;
  uint32_t soft = 0;  // The same of preferences that may be left.
  Error refused;      // A policy that makes no sense or that nothing satisfies; else kOk.
};

// `skip_authority`: it has just said that it has no room.
Placement PlaceKey(Core& core, const routing::ClusterView& view, const KeyRef& ref,
                   const ReplicateConfig* replicate, bool skip_authority);

}  // namespace mooncake::node

// Placement: which owners a value may go to, best first.
#pragma once

#include <string>
#include <vector>

#include "mooncake/store.h"
#include "node/core.h"

namespace mooncake::node {

class RoomPlan;
struct Relocation;
struct WriteItem;

struct Candidate {
  // In the view that was given to what made the candidate, and in no other. kNoNode: this node.
  routing::NodeIndex node = routing::kNoNode;
  std::string segment;  // Empty: any of the node's.
};

struct Placement {
  std::vector<Candidate> candidates;  // Distinct nodes.
  uint32_t copies = 1;
  // The first so many candidates were asked for: by name, or as this node itself.
  uint32_t preferred = 0;
  // The first so many candidates are hard preferences: as many copies as they allow have to be
  // on them.
  uint32_t hard = 0;
  Error refused;  // A policy that makes no sense or that nothing satisfies; else kOk.
};

// `authority_last`: it has no room. Those that have none by `rooms` come after those that have
// some, except for what was asked for by name; what the copies take is taken from it. nullptr: all
// have.
Placement PlaceKey(Core& core, const routing::ClusterView& view, const WriteItem& item,
                   const ReplicateConfig* replicate, bool authority_last, RoomPlan* rooms);

// The targets of a value that is moved. One that is no storage node of the view is left out; where
// too few are left for what is asked for, that is refused with kConflict: it is to be planned anew.
Placement PlaceRelocation(Core& core, const routing::ClusterView& view,
                          const Relocation& relocation);

// Why no copy was placed, as far as the view tells: kNoSpace, or kTransport where all who could
// take one are suspect. Where a full owner has said so, or a call failed, that says more.
Error NoRoom(Core& core, const routing::ClusterView& view);

// Where a candidate's copies fail together: ViewNode::Host.
std::string HostOf(Core& core, const routing::ClusterView& view, routing::NodeIndex node);

// Whether any segment of the cluster is as large as a value.
bool FitsAnywhere(Core& core, const routing::ClusterView& view, uint64_t size);

// kNoSpace: why a hard preference of a value that was not stored got no copy, where that is because
// it takes no new values, whatever room it has. Else kOk.
Error InactiveChoice(Core& core, const routing::ClusterView& view, const Placement& placement);

}  // namespace mooncake::node

// Arrivals: the members from before the cluster that this node knows of (docs/adr/0019-eras.md).
// Each has to be asked for what it has when it comes, and again where it did not tell all: after a
// lease or two it is a member like all others, and what nobody knows of then is given up.
//
// All authorities ask at the same moment, which may be why one does not answer in time. So each
// asks again after a while of its own choice, and takes its slots over anew only from one that
// answers by then: until a takeover is done, its slots are not served.
#pragma once

#include <map>
#include <set>

#include "node/core.h"

namespace mooncake::node {

// A peer that does not answer a takeover's question this fast is done without; its own fence is
// then the metadata service's word that it is no authority any more.
inline constexpr uint64_t kPullTimeoutMs = 2'000;
inline constexpr uint64_t kSuspectTimeoutMs = 500;  // A suspect's first answer.

// Whether others may need what the node knows or has.
bool Matters(const routing::ViewNode& node);

// The newest one: what nobody has told us of, nobody knows from before that.
uint64_t EraOfAll(const routing::ClusterView& view);

// Whether an authority that knows of that era only, and not of the live extent, cannot know whether
// it is in use: it answers for a cluster that began without this node, and has yet to ask it.
bool IsUnheardOf(const Core& core, const Extent& extent, uint64_t era);

// Refresher thread only.
class Arrivals {
 public:
  // The oldest era that a member brings along which is new in the view, or can be asked again: a
  // suspect that is none any more, or one that did not tell all, and answers now. All slots that
  // are known since a newer one only are to be taken over. Asks peers.
  uint64_t Oldest(Core& core, const routing::ClusterView& before,
                  const routing::ClusterView& after);
  // Once they are; `oldest`: as returned. `unheard`: who did not tell all that it has.
  void Note(Core& core, const routing::ClusterView& after, uint64_t oldest,
            const std::set<routing::NodeIndex>& unheard);

 private:
  void AskAgain(Core& core, const routing::ClusterView& after);

  std::map<NodeId, uint64_t> unheard_;  // And when they are asked again.
  std::set<NodeId> answering_;          // Of those.
};

}  // namespace mooncake::node

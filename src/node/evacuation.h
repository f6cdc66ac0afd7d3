// Evacuation: moves the live values of this node, or of one of its segments, elsewhere. Each is
// copied, then published in place of the old replica only if the key's version is still the
// same, so a concurrent put or remove wins. Makes no room at the targets: nothing that is live
// is evicted for it. What the authority does not know of is freed, unless it cannot know: one from
// after the metadata service lost its data has to ask this node first (docs/adr/0019-eras.md), and
// that is waited for.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "node/core.h"

namespace mooncake::node {

struct EvacuationOptions {
  std::optional<uint32_t> segment;  // Only this one; this node's other segments may take it.
  std::string prefer;               // A node's name: tried first (a successor).
  uint64_t deadline_ms = 0;
  std::function<bool()> closing;  // Empty, or whether there is no time to wait for anything.
};

struct EvacuationResult {
  uint64_t moved = 0;              // Replicas of live values that are elsewhere now.
  uint64_t remaining_objects = 0;  // Still here: no target had room, or time was up.
  uint64_t remaining_bytes = 0;
  Error last_error;  // Why, where something remains.
};

EvacuationResult Evacuate(Core& core, const EvacuationOptions& options);

}  // namespace mooncake::node

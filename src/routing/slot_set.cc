#include "routing/slot_set.h"

#include <algorithm>

namespace mooncake::routing {
namespace {

bool LeadsSlot(const ClusterView& view, NodeIndex node, Slot slot) {
  std::span<const NodeIndex> ranks = view.Ranks(slot);
  return node != kNoNode && !ranks.empty() && ranks[0] == node;
}

}  // namespace

std::vector<Slot> GainedSlots(const ClusterView& before, const ClusterView& after,
                              const NodeId& self) {
  std::vector<Slot> slots;
  NodeIndex node_before = before.Find(self);
  NodeIndex node_after = after.Find(self);
  const uint32_t count = std::max(before.slots().count(), after.slots().count());
  for (Slot slot = 0; slot < count; ++slot) {
    if (LeadsSlot(after, node_after, slot) && !LeadsSlot(before, node_before, slot)) {
      slots.push_back(slot);
    }
  }
  return slots;
}

std::vector<Slot> LostSlots(const ClusterView& before, const ClusterView& after,
                            const NodeId& self) {
  return GainedSlots(after, before, self);
}

}  // namespace mooncake::routing

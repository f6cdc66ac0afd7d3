// Builders of leases and views for the routing tests.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "routing/view.h"

namespace mooncake::routing {

inline constexpr uint32_t kSlotCount = 65'536;  // Of a cluster that was asked for no other.

inline LeaseRecord MakeLease(std::string stable_id, uint64_t epoch = 1) {
  LeaseRecord lease;
  lease.id = {std::move(stable_id), epoch};
  lease.state = NodeState::kActive;
  lease.endpoint = "10.0.0.1:4000";
  lease.labels = {{"route", "true"}, {"storage", "true"}};
  lease.segments = {{.name = lease.id.stable_id + "-segment", .capacity_bytes = 1 << 20}};
  return lease;
}

inline std::vector<LeaseRecord> MakeLeases(int count) {
  std::vector<LeaseRecord> leases;
  for (int i = 0; i < count; ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "node-%04d", i);
    leases.push_back(MakeLease(name));
  }
  return leases;
}

inline std::shared_ptr<const ClusterView> BuildView(std::vector<LeaseRecord> leases,
                                                    const std::string& route_scope = "") {
  return ViewBuilder(route_scope).Build(1, std::move(leases));
}

// The authorities of a slot by name, which, unlike indices, can be compared between views.
inline std::vector<std::string> RankNames(const ClusterView& view, Slot slot) {
  std::vector<std::string> names;
  for (NodeIndex index : view.Ranks(slot)) names.push_back(view.node(index).lease.id.ToString());
  return names;
}

inline std::vector<std::vector<std::string>> AllRankNames(const ClusterView& view) {
  std::vector<std::vector<std::string>> all(view.slots().count());
  for (Slot slot = 0; slot < all.size(); ++slot) all[slot] = RankNames(view, slot);
  return all;
}

// The number of slots that each node leads.
inline std::map<std::string, int> SlotShares(const ClusterView& view) {
  std::map<std::string, int> shares;
  for (Slot slot = 0; slot < view.slots().count(); ++slot) {
    ++shares[view.node(view.Ranks(slot)[0]).lease.id.stable_id];
  }
  return shares;
}

}  // namespace mooncake::routing

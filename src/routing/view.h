// ClusterView: an immutable snapshot of the membership, with everything that routing asks for
// in O(1): the ranks of a slot, a node by id. Built on each membership change, shared as
// shared_ptr<const ClusterView>. Pure: no clock, no I/O.
//
// Authorities of a slot: the nodes that are Active, not suspect, carry the label route=true
// (and the observer's route_scope where it has one), one per stable_id (the highest epoch),
// ordered by weighted rendezvous hashing over (slot, stable_id) with label route_weight
// (Schindelhauer and Schomaker 2005: score = -weight / ln(uniform hash), rendezvous.h); the
// epoch is not hashed, so an upgraded node keeps its slots. The second, which mirrors what the
// first knows, is the best of those ranks that is on another host than the first, where there is
// one: what stops a host stops all its processes. Where no Active node has those labels, suspect or
// not, the Draining ones that have them take the place of the Active ones; where there is none of
// these either, the Standby ones with a segment. A node of another protocol_major, or one that
// divides the keys into another number of slots, is neither authority nor storage nor readable.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/metadata_store.h"

namespace mooncake::routing {

inline constexpr size_t kRanksMax = 4;  // Ranks kept per slot.
using Slot = uint32_t;
using NodeIndex = uint16_t;  // There is one for each rank of each slot, so small is quick.
inline constexpr NodeIndex kNoNode = 0xffff;
// A view has no more; of a larger membership the first in the order of ids.
inline constexpr size_t kNodesMax = kNoNode - 1;

// The slots of a cluster: 2^bits of them, each with the keys whose hashes begin with its number.
class Slots {
 public:
  // REQUIRES: IsSlotBits(bits).
  explicit Slots(uint32_t bits = kSlotBitsDefault);

  uint32_t bits() const { return 64 - shift_; }
  uint32_t count() const { return uint32_t{1} << bits(); }
  Slot Of(uint64_t key_hash) const { return static_cast<Slot>(key_hash >> shift_); }

 private:
  uint32_t shift_;
};

struct ViewNode {
  LeaseRecord lease;
  bool authority = false;  // Is an authority (see above): at most one node per stable_id.
  bool routes = false;     // Would be one, were it not suspect or succeeded.
  bool storage = false;    // Active, not suspect, label storage=true, has an Active segment.
  bool stores = false;     // Would be storage, were it not suspect.
  bool readable = false;   // Standby, Active or Draining with an endpoint.
  double weight = 1.0;     // Label route_weight; 1 unless that is a positive number.

  const std::string& Label(const std::string& name) const;  // "" when absent.
  // What it fails together with: the label `host`, else the machine.
  const std::string& Host() const;
};

class ClusterView {
 public:
  uint64_t revision() const { return revision_; }
  std::span<const ViewNode> nodes() const { return nodes_; }  // Ordered by id.
  const ViewNode& node(NodeIndex index) const { return nodes_[index]; }
  const Slots& slots() const { return slots_; }

  // Up to kRanksMax authorities of the slot, best first; fewer when the cluster has fewer, none
  // for a slot that does not exist.
  std::span<const NodeIndex> Ranks(Slot slot) const;
  // Of the slot of a key's 64-bit hash.
  std::span<const NodeIndex> RanksOf(uint64_t key_hash) const { return Ranks(slots_.Of(key_hash)); }
  // kNoNode: not in the view.
  NodeIndex Find(const NodeId& id) const;
  NodeIndex FindStable(std::string_view stable_id) const;  // Highest epoch.
  NodeIndex FindName(std::string_view name) const;         // "stable_id" or "stable_id:epoch".

  // The storage nodes of a pool in rendezvous order for a key: where copies go after explicit
  // preferences. `pool` (the label's value) empty: every pool. At most `count`, and one node per
  // stable_id (the highest epoch), as two copies on one machine protect nothing. Unweighted.
  std::vector<NodeIndex> PlacementOrder(uint64_t key_hash, std::string_view pool,
                                        size_t count) const;
  // Whether the pool (likewise) has storage nodes but all of them are suspect.
  bool OnlySuspectsStore(std::string_view pool) const;

 private:
  friend class ViewBuilder;
  struct PoolMember {
    uint64_t seed;
    NodeIndex node;
  };
  void IndexNodes();
  void IndexPools();

  uint64_t revision_ = 0;
  std::vector<ViewNode> nodes_;
  Slots slots_;
  std::vector<NodeIndex> ranks_;         // slots_.count() * width_
  size_t width_ = 0;                     // min(kRanksMax, authorities)
  std::vector<NodeIndex> by_stable_id_;  // Open addressing, a power of two, half full at most.
  std::map<std::string, std::vector<PoolMember>, std::less<>> pools_;  // "": all.
};

// Keeps the working state (ranks) between views so that one change costs one node's share of
// the hashing, not the cluster's; the first view costs about a nanosecond for each node and slot.
// Not thread-safe.
class ViewBuilder {
 public:
  explicit ViewBuilder(std::string route_scope, Slots slots = Slots());
  ~ViewBuilder();
  // `leases` is the whole membership. Order does not matter; duplicates of an id: the last wins.
  std::shared_ptr<const ClusterView> Build(uint64_t revision, std::vector<LeaseRecord> leases);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// An empty view with revision 0.
std::shared_ptr<const ClusterView> EmptyView();

}  // namespace mooncake::routing

#include "routing/view.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "routing/slot_ranks.h"

namespace mooncake::routing {
namespace {

constexpr uint32_t kProtocolMajor = 1;
// Sets placement apart from the slots, so that a node's luck with one is not its luck with both.
constexpr uint64_t kPlacementSeed = 0x706c6163656d656eULL;

double WeightOf(const std::string& text) {
  double weight = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
  bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && std::isfinite(weight) && weight > 0 ? weight : 1.0;
}

bool OffersStorage(const LeaseRecord& lease) {
  return std::any_of(lease.segments.begin(), lease.segments.end(), [](const SegmentRecord& s) {
    return s.state == NodeState::kActive && s.capacity_bytes > 0;
  });
}

// Whether the node is one that answers for slots where those of its state do.
bool KeepsRoutes(const ViewNode& node, const std::string& route_scope) {
  if (node.Label("route") != "true") return false;
  if (!route_scope.empty() && node.Label("route_scope") != route_scope) return false;
  switch (node.lease.state) {
    case NodeState::kActive:
    case NodeState::kDraining: return true;
    // One without a segment never had anything; it waits to be made active.
    case NodeState::kStandby: return !node.lease.segments.empty();
    default: return false;
  }
}

// The draining nodes answer where no active one is left that could, and else nobody would find the
// values that they still have; likewise the standby ones. A suspect node counts: it may be well,
// and know of values that the others cannot know of.
void ChooseAuthorities(std::vector<ViewNode>& nodes) {
  const auto route_in = [&](NodeState state) {
    return std::any_of(nodes.begin(), nodes.end(), [&](const ViewNode& node) {
      return node.routes && node.lease.state == state;
    });
  };
  const NodeState in_charge = route_in(NodeState::kActive)     ? NodeState::kActive
                              : route_in(NodeState::kDraining) ? NodeState::kDraining
                                                               : NodeState::kStandby;
  for (ViewNode& node : nodes) {
    node.routes = node.routes && node.lease.state == in_charge;
    node.authority = node.routes && !node.lease.suspect;
  }
}

ViewNode MakeNode(LeaseRecord lease, const std::string& route_scope, const Slots& slots) {
  ViewNode node;
  node.lease = std::move(lease);
  const LeaseRecord& record = node.lease;
  node.weight = WeightOf(node.Label("route_weight"));
  if (record.protocol_major != kProtocolMajor || record.slot_bits != slots.bits()) return node;
  node.routes = KeepsRoutes(node, route_scope);
  node.stores = record.state == NodeState::kActive && node.Label("storage") == "true" &&
                OffersStorage(record);
  node.storage = node.stores && !record.suspect;
  bool serves = record.state == NodeState::kStandby || record.state == NodeState::kActive ||
                record.state == NodeState::kDraining;
  node.readable = serves && !record.endpoint.empty();
  return node;
}

// Ordered by id, kNodesMax at most; of several leases of an id the one that came last.
std::vector<ViewNode> MakeNodes(std::vector<LeaseRecord> leases, const std::string& route_scope,
                                const Slots& slots) {
  std::map<NodeId, LeaseRecord*> by_id;
  for (LeaseRecord& lease : leases) by_id[lease.id] = &lease;
  std::vector<ViewNode> nodes;
  nodes.reserve(by_id.size());
  for (const auto& [id, lease] : by_id) {
    if (nodes.size() == kNodesMax) break;
    nodes.push_back(MakeNode(std::move(*lease), route_scope, slots));
  }
  ChooseAuthorities(nodes);
  return nodes;
}

// A number for the host of each node.
std::vector<NodeIndex> HostsOf(std::span<const ViewNode> nodes) {
  std::map<std::string_view, NodeIndex> numbers;
  std::vector<NodeIndex> hosts;
  hosts.reserve(nodes.size());
  for (const ViewNode& node : nodes) {
    const auto next = static_cast<NodeIndex>(numbers.size());
    hosts.push_back(numbers.try_emplace(node.Host(), next).first->second);
  }
  return hosts;
}

// Of the ranks of a slot, brings the best one that is on another host than the first to the second
// place. By the ranks alone, so that all who have the view agree.
void SpreadRanks(std::span<NodeIndex> ranks, std::span<const NodeIndex> hosts) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (hosts[ranks[i]] == hosts[ranks[0]]) continue;
    std::rotate(ranks.begin() + 1, ranks.begin() + static_cast<ptrdiff_t>(i),
                ranks.begin() + static_cast<ptrdiff_t>(i) + 1);
    return;
  }
}

}  // namespace

Slots::Slots(uint32_t bits) : shift_(64 - bits) { MC_CHECK(IsSlotBits(bits)); }

const std::string& ViewNode::Label(const std::string& name) const {
  static const std::string absent;
  auto label = lease.labels.find(name);
  return label == lease.labels.end() ? absent : label->second;
}

std::span<const NodeIndex> ClusterView::Ranks(Slot slot) const {
  if (slot >= slots_.count()) return {};
  return {ranks_.data() + size_t{slot} * width_, width_};
}

const std::string& ViewNode::Host() const {
  const auto label = lease.labels.find("host");
  return label != lease.labels.end() ? label->second : lease.host;
}

void ClusterView::IndexNodes() {
  if (nodes_.empty()) return;
  by_stable_id_.assign(std::bit_ceil(nodes_.size() * 2), kNoNode);
  size_t mask = by_stable_id_.size() - 1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const std::string& stable_id = nodes_[i].lease.id.stable_id;
    // Ordered by id: the highest epoch is the last of its stable_id.
    if (i + 1 < nodes_.size() && nodes_[i + 1].lease.id.stable_id == stable_id) continue;
    size_t place = base::Hash64(stable_id) & mask;
    while (by_stable_id_[place] != kNoNode) place = (place + 1) & mask;
    by_stable_id_[place] = static_cast<NodeIndex>(i);
  }
}

void ClusterView::IndexPools() {
  auto& all = pools_[""];
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].storage) continue;
    const std::string& stable_id = nodes_[i].lease.id.stable_id;
    bool replaced = false;  // By a higher epoch that can take copies too.
    for (size_t j = i + 1; j < nodes_.size() && !replaced; ++j) {
      if (nodes_[j].lease.id.stable_id != stable_id) break;
      replaced = nodes_[j].storage;
    }
    if (replaced) continue;
    PoolMember member{base::Hash64(stable_id, kPlacementSeed), static_cast<NodeIndex>(i)};
    all.push_back(member);
    const std::string& pool = nodes_[i].Label("pool");
    if (!pool.empty()) pools_[pool].push_back(member);
  }
}

NodeIndex ClusterView::FindStable(std::string_view stable_id) const {
  if (by_stable_id_.empty()) return kNoNode;
  size_t mask = by_stable_id_.size() - 1;
  size_t place = base::Hash64(stable_id) & mask;
  while (by_stable_id_[place] != kNoNode) {  // Ends: half of the places are empty.
    if (nodes_[by_stable_id_[place]].lease.id.stable_id == stable_id) return by_stable_id_[place];
    place = (place + 1) & mask;
  }
  return kNoNode;
}

NodeIndex ClusterView::Find(const NodeId& id) const {
  NodeIndex index = FindStable(id.stable_id);
  if (index == kNoNode) return kNoNode;
  // Lower epochs lie in front; there are two at most while a node is being replaced.
  while (nodes_[index].lease.id.epoch > id.epoch) {
    if (index == 0 || nodes_[index - 1].lease.id.stable_id != id.stable_id) return kNoNode;
    --index;
  }
  return nodes_[index].lease.id.epoch == id.epoch ? index : kNoNode;
}

NodeIndex ClusterView::FindName(std::string_view name) const {
  // A stable_id may hold colons itself ("host:port"), and "a:1" may be both a name and a
  // stable_id: the exact incarnation has precedence.
  size_t colon = name.rfind(':');
  if (colon != std::string_view::npos) {
    NodeId id{std::string(name.substr(0, colon)), 0};
    const char* last = name.data() + name.size();
    auto [end, error] = std::from_chars(name.data() + colon + 1, last, id.epoch);
    if (error == std::errc() && end == last) {
      NodeIndex index = Find(id);
      if (index != kNoNode) return index;
    }
  }
  return FindStable(name);
}

std::vector<NodeIndex> ClusterView::PlacementOrder(uint64_t key_hash, std::string_view pool,
                                                   size_t count) const {
  auto found = pools_.find(pool);
  if (found == pools_.end() || count == 0) return {};
  // A heap of the best so far with the worst of them on top. Pairs order ties by index, which
  // is the order of the stable_ids.
  std::vector<std::pair<uint64_t, NodeIndex>> best;
  best.reserve(std::min(count, found->second.size()));
  for (const PoolMember& member : found->second) {
    std::pair<uint64_t, NodeIndex> entry(base::Mix64(member.seed ^ key_hash), member.node);
    if (best.size() == count) {
      if (entry >= best.front()) continue;
      std::pop_heap(best.begin(), best.end());
      best.back() = entry;
    } else {
      best.push_back(entry);
    }
    std::push_heap(best.begin(), best.end());
  }
  std::sort_heap(best.begin(), best.end());
  std::vector<NodeIndex> order;
  order.reserve(best.size());
  for (const auto& [score, node] : best) order.push_back(node);
  return order;
}

bool ClusterView::OnlySuspectsStore(std::string_view pool) const {
  bool suspects = false;
  for (const ViewNode& node : nodes_) {
    if (!node.stores || (!pool.empty() && node.Label("pool") != pool)) continue;
    if (node.storage) return false;
    suspects = true;
  }
  return suspects;
}

struct ViewBuilder::State {
  State(std::string scope, Slots of) : route_scope(std::move(scope)), slots(of) {}

  const std::string route_scope;
  const Slots slots;
  SlotRanks ranks{slots.count()};
};

ViewBuilder::ViewBuilder(std::string route_scope, Slots slots)
    : state_(std::make_unique<State>(std::move(route_scope), slots)) {}

ViewBuilder::~ViewBuilder() = default;

std::shared_ptr<const ClusterView> ViewBuilder::Build(uint64_t revision,
                                                      std::vector<LeaseRecord> leases) {
  auto view = std::make_shared<ClusterView>();
  view->revision_ = revision;
  view->slots_ = state_->slots;
  view->nodes_ = MakeNodes(std::move(leases), state_->route_scope, state_->slots);
  std::map<std::string, double> weights;
  std::map<std::string, NodeIndex> authorities;
  for (size_t i = 0; i < view->nodes_.size(); ++i) {
    ViewNode& node = view->nodes_[i];
    if (!node.authority) continue;
    const std::string& stable_id = node.lease.id.stable_id;
    auto [authority, is_first] = authorities.try_emplace(stable_id, static_cast<NodeIndex>(i));
    if (!is_first) {
      view->nodes_[authority->second].authority = false;  // A higher epoch has taken over.
      authority->second = static_cast<NodeIndex>(i);
    }
    weights[stable_id] = node.weight;
  }
  view->IndexNodes();
  view->IndexPools();

  SlotRanks& ranks = state_->ranks;
  ranks.Assign(weights);
  std::vector<NodeIndex> node_of(ranks.names().size(), kNoNode);
  for (size_t id = 0; id < node_of.size(); ++id) {
    auto authority = authorities.find(ranks.names()[id]);
    if (authority != authorities.end()) node_of[id] = authority->second;
  }
  view->width_ = std::min(kRanksMax, ranks.size());
  view->ranks_.resize(size_t{state_->slots.count()} * view->width_);
  const std::vector<NodeIndex> hosts = HostsOf(view->nodes_);
  NodeIndex* next = view->ranks_.data();
  for (Slot slot = 0; slot < state_->slots.count(); ++slot, next += view->width_) {
    std::span<const SlotRanks::Id> best = ranks.Best(slot);
    for (size_t i = 0; i < view->width_; ++i) next[i] = node_of[best[i]];
    SpreadRanks({next, view->width_}, hosts);
  }
  return view;
}

std::shared_ptr<const ClusterView> EmptyView() {
  static const auto empty = std::make_shared<const ClusterView>();
  return empty;
}

}  // namespace mooncake::routing

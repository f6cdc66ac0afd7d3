#include "node/arrivals.h"

#include <algorithm>
#include <vector>

namespace mooncake::node {

namespace {

using routing::ClusterView;
using routing::NodeIndex;

// Several times before it counts as one of ours, and each time as if we were the only ones.
uint64_t NextTimeMs(Core& core) {
  const uint64_t wait_ms = core.membership.EraWaitMs();
  return core.runtime.NowMs() + wait_ms / 16 + core.runtime.Random() % (wait_ms / 4);
}

}  // namespace

bool Matters(const routing::ViewNode& node) {
  return node.readable && node.lease.era != 0 && (node.routes || !node.lease.segments.empty());
}

uint64_t EraOfAll(const ClusterView& view) {
  uint64_t newest = 0;
  for (const routing::ViewNode& node : view.nodes()) newest = std::max(newest, node.lease.era);
  return newest;
}

bool IsUnheardOf(const Core& core, const Extent& extent, uint64_t era) {
  if (extent.state() != ExtentState::kLive) return false;
  return core.membership.era() < era && extent.version() <= era << kTermBits;
}

void Arrivals::AskAgain(Core& core, const ClusterView& after) {
  answering_.clear();
  const uint64_t newest = EraOfAll(after);
  std::erase_if(unheard_, [&](const auto& entry) {
    const NodeIndex index = after.Find(entry.first);
    if (index == routing::kNoNode) return true;
    const LeaseRecord& lease = after.node(index).lease;
    return lease.suspect || lease.era >= newest;  // A suspect arrives when it is none any more.
  });
  const uint64_t now_ms = core.runtime.NowMs();
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::InventoryRequest> requests;
  for (const auto& [id, ask_ms] : unheard_) {
    if (now_ms < ask_ms) continue;
    peers.push_back(&after.node(after.Find(id)));
    // It looks through all that it has for one slot as for many.
    v1::InventoryRequest& request = requests.emplace_back();
    core.peers.FillOrigin(false, request.mutable_origin());
    request.add_slots(0);
  }
  if (peers.empty()) return;
  const auto replies = core.peers.AskMany<v1::InventoryReply, v1::InventoryRequest>(
      peers, MessageType::kInventory, requests, now_ms + kPullTimeoutMs, now_ms + kPullTimeoutMs);
  for (size_t i = 0; i < peers.size(); ++i) {
    const NodeId& id = peers[i]->lease.id;
    unheard_[id] = NextTimeMs(core);
    if (replies[i].ok()) answering_.insert(id);
  }
}

uint64_t Arrivals::Oldest(Core& core, const ClusterView& before, const ClusterView& after) {
  AskAgain(core, after);
  uint64_t oldest = ~uint64_t{0};
  for (const routing::ViewNode& node : after.nodes()) {
    if (!Matters(node) || node.lease.suspect) continue;
    const NodeIndex known = before.Find(node.lease.id);
    const bool there = known != routing::kNoNode && !before.node(known).lease.suspect &&
                       before.node(known).lease.era != 0;
    if (!there || answering_.contains(node.lease.id)) oldest = std::min(oldest, node.lease.era);
  }
  return oldest;
}

void Arrivals::Note(Core& core, const ClusterView& after, uint64_t oldest,
                    const std::set<NodeIndex>& unheard) {
  std::erase_if(unheard_, [&](const auto& entry) {
    const NodeIndex index = after.Find(entry.first);
    return index == routing::kNoNode || after.node(index).lease.era >= oldest;
  });
  for (NodeIndex index : unheard) {
    unheard_.try_emplace(after.node(index).lease.id, NextTimeMs(core));
  }
  uint64_t next_ms = 0;
  for (const auto& [id, ask_ms] : unheard_) {
    next_ms = next_ms == 0 ? ask_ms : std::min(next_ms, ask_ms);
  }
  core.membership.ReapplyAt(next_ms);
}

}  // namespace mooncake::node

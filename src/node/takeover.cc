#include "node/takeover.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "obs/log.h"

namespace mooncake::node {

namespace {

using routing::ClusterView;
using routing::NodeIndex;
using routing::Slot;

// A peer that does not answer a pull this fast is done without; its own fence is then the
// metadata service's word that it is no authority any more.
constexpr uint64_t kPullTimeoutMs = 2'000;
constexpr size_t kPagesMax = RouteTable::kShards + ExtentStore::kIndexShards;

class Takeover {
 public:
  Takeover(Core& core, const ClusterView& before, const ClusterView& after)
      : core_(core), before_(before), after_(after), self_(after.Find(core.membership.self())) {}

  void Run(const std::vector<Slot>& gained) {
    std::vector<KeyedRoute> hearsay = Mirrors(gained);
    const size_t known = hearsay.size();
    std::vector<Slot> lost;
    pending_ = core_.routes.BeginTakeover(gained, after_.revision(), &lost);
    std::vector<bool> confirmed(routing::kSlotCount);
    std::vector<bool> unsure(routing::kSlotCount);
    PullFormer(&confirmed, &unsure, &hearsay);
    TakeBack(lost, unsure, std::span(hearsay).first(known), &confirmed);
    std::vector<Slot> rest;
    for (Slot slot : pending_) {
      if (!confirmed[slot]) rest.push_back(slot);
    }
    if (!rest.empty()) Rebuild(rest, hearsay);
    core_.routes.EndTakeover(gained, after_.revision());
    core_.metrics.GetCounter("slots_taken_over_total", {{"source", "authority"}})
        .Add(pending_.size() - rest.size());
    core_.metrics.GetCounter("slots_taken_over_total", {{"source", "inventory"}}).Add(rest.size());
  }

 private:
  // What is known of the slots as a mirror or from when they were ours, before BeginTakeover
  // forgets it.
  std::vector<KeyedRoute> Mirrors(const std::vector<Slot>& slots) {
    std::vector<bool> wanted(routing::kSlotCount);
    for (Slot slot : slots) wanted[slot] = !core_.routes.Serves(slot);
    std::vector<KeyedRoute> mirrors;
    for (size_t shard = 0; shard < RouteTable::kShards; ++shard) {
      for (KeyedRoute& keyed :
           core_.routes.Export(shard, [&](Slot slot) { return bool{wanted[slot]}; })) {
        mirrors.push_back(std::move(keyed));
        mirrors.back().ref.key = {};  // Views the moved string; set again on use.
      }
    }
    return mirrors;
  }

  // Who served the slot last, and so knows the whole truth; what others had may be long out of
  // date. A node that was away itself, or is new, takes the slot from the one that it displaces.
  NodeIndex LastServer(Slot slot) const {
    const auto former = before_.Ranks(slot);
    if (!former.empty()) {
      const NodeIndex node = after_.Find(before_.node(former[0]).lease.id);
      if (node != self_) return node;
    }
    const auto ranks = after_.Ranks(slot);
    return ranks.size() > 1 ? ranks[1] : routing::kNoNode;
  }

  void AddSource(NodeIndex node, Slot slot, std::map<NodeIndex, std::vector<Slot>>* sources) {
    if (node == self_ || node == routing::kNoNode || !after_.node(node).readable) return;
    std::vector<Slot>& slots = (*sources)[node];
    if (slots.empty() || slots.back() != slot) slots.push_back(slot);
  }

  std::map<NodeIndex, std::vector<Slot>> Sources() {
    std::vector<NodeIndex> leaving;
    for (size_t i = 0; i < after_.nodes().size(); ++i) {
      const ViewNode& node = after_.node(static_cast<NodeIndex>(i));
      const bool left = node.lease.state == NodeState::kDraining ||
                        node.lease.state == NodeState::kStandby || node.lease.suspect;
      if (left && !node.authority) leaving.push_back(static_cast<NodeIndex>(i));
    }
    std::map<NodeIndex, std::vector<Slot>> sources;
    for (Slot slot : pending_) {
      AddSource(LastServer(slot), slot, &sources);
      for (NodeIndex node : after_.Ranks(slot)) AddSource(node, slot, &sources);
      for (NodeIndex node : leaving) AddSource(node, slot, &sources);
    }
    return sources;
  }

  using ViewNode = routing::ViewNode;

  // Asks every source for all pages. Calls `take` with each page; returns the peers that
  // answered all of them.
  template <typename Request, typename Reply, typename Take>
  std::set<NodeIndex> AskPages(MessageType type,
                               const std::map<NodeIndex, std::vector<Slot>>& sources,
                               const Take& take) {
    std::map<NodeIndex, uint64_t> cursors;
    for (const auto& [node, slots] : sources) cursors[node] = 0;
    std::set<NodeIndex> complete;
    for (size_t page = 0; page < kPagesMax && !cursors.empty(); ++page) {
      std::vector<const ViewNode*> peers;
      std::vector<NodeIndex> asked;
      std::vector<Request> requests;
      for (const auto& [node, cursor] : cursors) {
        peers.push_back(&after_.node(node));
        asked.push_back(node);
        Request& request = requests.emplace_back();
        core_.peers.FillOrigin(false, request.mutable_origin());
        request.mutable_origin()->set_revision(after_.revision());
        const std::vector<Slot>& slots = sources.at(node);
        request.mutable_slots()->Add(slots.begin(), slots.end());
        request.set_cursor(cursor);
      }
      // Suspects too: the suspicion may be the trace of an outage of our own.
      auto replies = core_.peers.AskMany<Reply, Request>(
          peers, type, requests, core_.runtime.NowMs() + kPullTimeoutMs, true);
      for (size_t i = 0; i < asked.size(); ++i) {
        if (!replies[i].ok()) {
          cursors.erase(asked[i]);
          silent_.insert(asked[i]);
          continue;
        }
        take(asked[i], *replies[i]);
        const uint64_t next = replies[i]->next_cursor();
        if (next <= cursors[asked[i]]) {  // 0, or a peer that runs in circles.
          cursors.erase(asked[i]);
          complete.insert(asked[i]);
        } else {
          cursors[asked[i]] = next;
        }
      }
    }
    return complete;
  }

  // Calls `take` with each good route of a reply.
  template <typename Reply, typename Take>
  void ReadRoutes(const Reply& reply, const Take& take) {
    const auto scopes = ReadScopes(reply.scopes(), core_.scopes);
    for (const v1::Route& wire : reply.routes()) {
      KeyedRoute keyed;
      if (ReadKeyedRoute(wire, scopes, core_.names, &keyed)) take(keyed);
    }
  }

  // `confirmed`: the whole truth came. `unsure`: somebody may have served the slot since we did.
  void PullFormer(std::vector<bool>* confirmed, std::vector<bool>* unsure,
                  std::vector<KeyedRoute>* hearsay) {
    const std::map<NodeIndex, std::vector<Slot>> sources = Sources();
    std::map<NodeIndex, std::vector<bool>> served;
    for (const auto& [node, slots] : sources) served[node].resize(routing::kSlotCount);
    const std::set<NodeIndex> complete = AskPages<v1::PullRequest, v1::PullReply>(
        MessageType::kPull, sources, [&](NodeIndex node, const v1::PullReply& reply) {
          for (uint32_t slot : reply.served()) {
            if (slot < routing::kSlotCount) served[node][slot] = true;
          }
          ReadRoutes(reply, [&](KeyedRoute& keyed) {
            const Slot slot = keyed.ref.slot();
            if (LastServer(slot) == node && served[node][slot]) {
              core_.routes.Import(keyed.ref, keyed.route, false);
            } else {
              hearsay->push_back(std::move(keyed));  // Its ref.key is set again on use.
            }
          });
        });
    for (const auto& [node, slots] : sources) {
      const bool whole = complete.contains(node);
      for (Slot slot : slots) {
        (*unsure)[slot] = (*unsure)[slot] || !whole || served[node][slot];
        if (whole && served[node][slot] && LastServer(slot) == node) (*confirmed)[slot] = true;
      }
    }
  }

  // Slots that we had lost and that nobody has served since: what we knew is the whole truth.
  // An inventory would not be, as removes of moments ago may not have reached all owners.
  void TakeBack(const std::vector<Slot>& lost, const std::vector<bool>& unsure,
                std::span<KeyedRoute> known, std::vector<bool>* confirmed) {
    std::vector<bool> ours(routing::kSlotCount);
    for (Slot slot : lost) {
      ours[slot] = !unsure[slot];
      if (ours[slot]) (*confirmed)[slot] = true;
    }
    for (KeyedRoute& keyed : known) {
      if (!ours[keyed.ref.slot()]) continue;
      keyed.ref.key = keyed.key;
      core_.routes.Import(keyed.ref, keyed.route, false);
    }
  }

  void Rebuild(const std::vector<Slot>& rest, std::vector<KeyedRoute>& hearsay) {
    std::map<NodeIndex, std::vector<Slot>> owners;
    for (size_t i = 0; i < after_.nodes().size(); ++i) {
      const auto index = static_cast<NodeIndex>(i);
      const ViewNode& node = after_.node(index);
      const bool worth_asking = node.readable && !node.lease.segments.empty();
      if (index != self_ && worth_asking && !silent_.contains(index)) owners[index] = rest;
    }
    ImportOwn(rest);
    const std::set<NodeIndex> answered = AskPages<v1::InventoryRequest, v1::InventoryReply>(
        MessageType::kInventory, owners, [&](NodeIndex, const v1::InventoryReply& reply) {
          ReadRoutes(reply, [&](KeyedRoute& keyed) {
            core_.routes.Import(keyed.ref, keyed.route, false);
          });
        });
    std::vector<bool> wanted(routing::kSlotCount);
    for (Slot slot : rest) wanted[slot] = true;
    for (KeyedRoute& heard : hearsay) {
      heard.ref.key = heard.key;
      if (!wanted[heard.ref.slot()]) continue;
      std::erase_if(heard.route.replicas, [&](const Place& place) {
        if (place.owner == kSelf) return true;  // Our own inventory is complete.
        const NodeIndex owner = after_.FindName(core_.names.NameOf(place.owner));
        return owner == routing::kNoNode || answered.contains(owner);
      });
      if (!heard.route.replicas.empty()) core_.routes.Import(heard.ref, heard.route, false);
    }
  }

  void ImportOwn(const std::vector<Slot>& slots) {
    std::vector<bool> wanted(routing::kSlotCount);
    for (Slot slot : slots) wanted[slot] = true;
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      for (const ExtentPin& extent : core_.extents.ShardExtents(shard)) {
        const KeyRef ref = extent->ref();
        if (extent->state() != ExtentState::kLive || !wanted[ref.slot()]) continue;
        core_.routes.Import(ref,
                            {extent->version(),
                             extent->size(),
                             extent->checksum(),
                             extent->has_checksum(),
                             extent->wants_soft_pin(),
                             {extent->place()}},
                            false);
      }
    }
  }

  Core& core_;
  const ClusterView& before_;
  const ClusterView& after_;
  const NodeIndex self_;
  std::vector<Slot> pending_;
  std::set<NodeIndex> silent_;  // Did not answer, and so are not asked again.
};

void SweepRemoved(Core& core, const ClusterView& before, const ClusterView& after) {
  std::set<NameIndex> removed;
  for (const routing::ViewNode& node : before.nodes()) {
    if (after.Find(node.lease.id) != routing::kNoNode) continue;
    core.peers.Forget(node.lease.endpoint);
    if (auto name = core.names.IndexOf(node.lease.id.ToString())) removed.insert(*name);
  }
  removed.erase(kSelf);
  if (removed.empty()) return;
  const uint64_t changed =
      core.routes.SweepOwners([&](NameIndex owner) { return removed.contains(owner); });
  core.metrics.GetCounter("routes_swept_total", {}).Add(changed);
}

bool IsAmong(std::span<const NodeIndex> ranks, NodeIndex node, size_t count) {
  const auto first = ranks.first(std::min(ranks.size(), count));
  return node != routing::kNoNode && std::find(first.begin(), first.end(), node) != first.end();
}

}  // namespace

void ApplyView(Core& core, const routing::ClusterView& before, const routing::ClusterView& after) {
  const NodeId self = core.membership.self();
  const NodeIndex index_before = before.Find(self);
  const NodeIndex index = after.Find(self);
  const bool lease_lost = core.membership.TakeLeaseLoss();
  std::vector<Slot> own;
  std::vector<Slot> lost;
  std::vector<bool> foreign(routing::kSlotCount);
  std::vector<bool> fenced(routing::kSlotCount);
  for (Slot slot = 0; slot < routing::kSlotCount; ++slot) {
    const auto ranks = after.Ranks(slot);
    foreign[slot] = !IsAmong(ranks, index, core.options.route_topk);
    // Those not before the view after that, as a puller may still be at it.
    fenced[slot] =
        foreign[slot] && !IsAmong(before.Ranks(slot), index_before, core.options.route_topk);
    // A slot that nobody else answers for stays here: a draining node serves reads to the end.
    if (ranks.empty()) continue;
    const bool ours = ranks[0] == index;
    if (ours) own.push_back(slot);
    if (!ours || lease_lost) lost.push_back(slot);
  }
  // By the table and not by the difference of the views: some that are served were in no view
  // that named us, and a peer may have fenced others that we never lost.
  core.routes.Lose(lost);
  core.routes.DropMirrors(foreign, fenced);
  std::erase_if(own, [&](Slot slot) { return core.routes.Serves(slot); });
  if (!own.empty()) Takeover(core, before, after).Run(own);
  SweepRemoved(core, before, after);
}

}  // namespace mooncake::node

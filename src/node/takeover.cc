#include "node/takeover.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "obs/log.h"

namespace mooncake::node {

namespace {

using routing::ClusterView;
using routing::NodeIndex;
using routing::Slot;

constexpr size_t kPagesMax = 4096;             // Of a peer: 64 GiB of routes.
constexpr uint64_t kAheadMs = 24 * 3'600'000;  // Of our view, a revision that others know.

// Of the members from before the cluster that others know of, those that know the oldest one.
uint64_t OldestEra(const ClusterView& view) {
  uint64_t oldest = ~uint64_t{0};
  for (const routing::ViewNode& node : view.nodes()) {
    if (Matters(node)) oldest = std::min(oldest, node.lease.era);
  }
  return oldest;
}

class Takeover {
 public:
  Takeover(Core& core, const ClusterView& before, const ClusterView& after)
      : core_(core),
        before_(before),
        after_(after),
        self_(after.Find(core.membership.self())),
        oldest_era_(OldestEra(after)) {}

  void Run(const std::vector<Slot>& gained) {
    std::vector<Heard> hearsay = OwnRoutes(gained);
    std::vector<Truth> known;
    pending_ = core_.routes.BeginTakeover(gained, after_.revision(), &known);
    best_.resize(slot_count());
    for (const Truth& truth : known) truths_.push_back({self_, truth});
    sources_ = Sources();
    PullFormer(&hearsay);
    for (Heard& heard : hearsay) {
      if (heard.from == self_) (void)ImportTruth(heard);
    }
    std::vector<Slot> rest;
    for (Slot slot : pending_) {
      if (!settled_[slot]) rest.push_back(slot);
    }
    if (!rest.empty()) Rebuild(rest, hearsay);
    core_.routes.AbandonTakeover(kept_);
    if (!kept_.empty()) core_.membership.ReapplySoon();
    core_.routes.EndTakeover(gained, after_.revision(), Eras(), Known());
    core_.metrics.GetCounter("slots_taken_over_total", {{"source", "authority"}})
        .Add(pending_.size() - rest.size());
    core_.metrics.GetCounter("slots_taken_over_total", {{"source", "inventory"}}).Add(rest.size());
  }

  // Owners from before the cluster that others know of who have not told all that they have.
  const std::set<NodeIndex>& unheard() const { return unheard_; }

 private:
  uint32_t slot_count() const { return after_.slots().count(); }
  Slot SlotOf(const KeyRef& ref) const { return after_.slots().Of(ref.hash); }

  // A route, and whose word it is.
  struct Heard {
    NodeIndex from = routing::kNoNode;
    KeyedRoute keyed;
    bool stale = false;  // From when that node served; another one has served the slot since.
  };
  // The newest truth about a slot that anybody has, and who.
  struct Best {
    Version upto = 0;
    NodeIndex node = routing::kNoNode;
    bool known = false;
    bool passed_on = false;
    bool unsure = false;
    uint64_t era = 0;
    bool Covers(Version version) const {
      return known && version <= upto && version > era << kTermBits;
    }
  };

  static void Consider(NodeIndex node, const Truth& truth, Best* best) {
    if (best->known && best->upto >= truth.upto) return;
    *best = {truth.upto, node, true, truth.passed_on, truth.unsure, truth.era};
  }

  // Whether a truth of this era knows all that the members can have. One that was found by nodes
  // who joined a metadata service that had lost everybody does not: there are members from before.
  bool IsWhole(uint64_t era) const { return era <= oldest_era_; }

  // The best truths, and below those that are not whole the best of what was before them.
  void RankTruths() {
    for (const auto& [node, truth] : truths_) {
      if (truth.passed_on) passed_on_[{node, truth.slot}] = truth.upto;
      Consider(node, truth, &best_[truth.slot]);
    }
    for (const auto& [node, truth] : truths_) {
      const Best& best = best_[truth.slot];
      if (IsWhole(best.era) || truth.upto > best.era << kTermBits) continue;
      Consider(node, truth, &older_[truth.slot]);
    }
  }

  // Which slots are done once the routes of the best truth are in: nobody can have served them
  // later, neither a node that does not answer nor one that asked for that truth before us.
  void Settle() {
    RankTruths();
    settled_.resize(slot_count());
    std::vector<bool> doubted(slot_count());
    for (NodeIndex node : silent_) {
      for (Slot slot : sources_[node]) doubted[slot] = true;
    }
    for (Slot slot : pending_) {
      const Best& best = best_[slot];
      const bool last = !doubted[slot] || (best.node == LastServer(slot) && !best.unsure);
      settled_[slot] =
          best.known && !best.passed_on && last && IsWhole(best.era) && !incredible_.contains(slot);
    }
  }

  bool ImportTruth(Heard& heard) {
    const Slot slot = SlotOf(heard.keyed.ref);
    if (!settled_[slot] || best_[slot].node != heard.from) return false;
    heard.keyed.ref.key = heard.keyed.key;
    ImportRoute(heard.keyed.ref, heard.keyed.route, heard.keyed.published_ms);
    return true;
  }

  // What the best truth of an unsettled slot would have named does not exist if it does not.
  bool Refuted(const KeyRef& ref, Version version) const {
    const auto older = older_.find(SlotOf(ref));
    const bool covered = best_[SlotOf(ref)].Covers(version) ||
                         (older != older_.end() && older->second.Covers(version));
    return covered && !named_.contains(Named(ref.scope, ref.key, version));
  }

  // Of what is known of every slot from now on: where there was no telling who had it last, the
  // members that there are.
  std::vector<uint64_t> Eras() const {
    std::vector<uint64_t> eras(slot_count(), EraOfAll(after_));
    for (Slot slot : pending_) {
      if (settled_[slot]) eras[slot] = best_[slot].era;
    }
    return eras;
  }

  std::vector<Version> Known() const {
    std::vector<Version> known(slot_count());
    for (Slot slot : pending_) known[slot] = best_[slot].upto;
    return known;
  }

  void ImportRoute(const KeyRef& ref, const Route& route, uint64_t published_ms) {
    core_.routes.Import(ref, route, false, kNewest, published_ms);
  }
  void ImportUnlessRefuted(const KeyRef& ref, const Route& route) {
    if (Refuted(ref, route.version)) return;
    // Owners do not know when, mirrors do.
    const auto found = published_ms_.find(Named(ref.scope, ref.key, route.version));
    ImportRoute(ref, route, found == published_ms_.end() ? 0 : found->second);
  }

  // What is known of the slots as a mirror or from when they were ours, before BeginTakeover
  // puts it away.
  std::vector<Heard> OwnRoutes(const std::vector<Slot>& slots) {
    std::vector<bool> wanted(slot_count());
    for (Slot slot : slots) wanted[slot] = !core_.routes.Serves(slot);
    std::vector<Heard> routes;
    for (size_t shard = 0; shard < RouteTable::kShards; ++shard) {
      for (KeyedRoute& keyed :
           core_.routes.Export(shard, [&](Slot slot) { return bool{wanted[slot]}; })) {
        routes.push_back({self_, std::move(keyed), false});
        routes.back().keyed.ref.key = {};  // Views the moved string; set again on use.
      }
    }
    return routes;
  }

  // Who served the slot last, as far as the views tell. A node that was away itself, or is new,
  // takes the slot from the one that it displaces: the second best, who comes third where it is on
  // our host. kNoNode: there is no telling.
  NodeIndex LastServer(Slot slot) const {
    const auto former = before_.Ranks(slot);
    if (!former.empty()) {
      const NodeIndex node = after_.Find(before_.node(former[0]).lease.id);
      if (node != self_) return node;
    }
    const auto ranks = after_.Ranks(slot);
    if (ranks.size() < 2) return routing::kNoNode;
    const auto host = [&](size_t rank) -> const std::string& {
      return after_.node(ranks[rank]).Host();
    };
    const bool doubtful = ranks.size() > 2 && host(1) != host(0) && host(2) == host(0);
    return doubtful ? routing::kNoNode : ranks[1];
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

  // Asks every source for all pages. Calls `note` with the replies of a round, and then `take`;
  // returns the peers that answered all of them.
  template <typename Request, typename Reply, typename Note, typename Take>
  std::set<NodeIndex> AskPages(MessageType type,
                               const std::map<NodeIndex, std::vector<Slot>>& sources,
                               const Note& note, const Take& take) {
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
      // Suspects too: the suspicion may be the trace of an outage of our own. Those that are silent
      // have cost somebody a stall already; one that has begun to answer is waited for like all.
      const uint64_t now_ms = core_.runtime.NowMs();
      const bool first = type == MessageType::kPull && page == 0;
      const uint64_t suspects_ms = first ? kSuspectTimeoutMs : kPullTimeoutMs;
      auto replies = core_.peers.AskMany<Reply, Request>(
          peers, type, requests, now_ms + kPullTimeoutMs, now_ms + suspects_ms);
      for (size_t i = 0; i < asked.size(); ++i) {
        if (replies[i].ok()) {
          note(asked[i], *replies[i]);
        } else {
          cursors.erase(asked[i]);
          silent_.insert(asked[i]);
        }
      }
      for (size_t i = 0; i < asked.size(); ++i) {
        if (!replies[i].ok()) continue;
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

  void NoteTruths(NodeIndex node, const v1::PullReply& reply) {
    for (uint32_t slot : reply.kept()) {
      if (slot < slot_count()) kept_.push_back(slot);
    }
    if (reply.upto_size() != reply.served_size()) return;
    const bool with_eras = reply.eras_size() == reply.served_size();
    const std::set<uint32_t> passed_on(reply.passed_on().begin(), reply.passed_on().end());
    const std::set<uint32_t> unsure(reply.unsure().begin(), reply.unsure().end());
    for (int i = 0; i < reply.served_size(); ++i) {
      const uint32_t slot = reply.served(i);
      if (slot >= slot_count()) continue;
      const uint64_t era = with_eras ? reply.eras(i) : 0;
      // Nobody can know of a time to come: it would refute whatever is put from now on. But who
      // says so has served the slot.
      if (std::max(reply.upto(i) >> kTermBits, era) > after_.revision() + kAheadMs) {
        incredible_.insert(slot);
        continue;
      }
      truths_.push_back(
          {node, {slot, reply.upto(i), passed_on.contains(slot), unsure.contains(slot), era}});
    }
  }

  bool IsStale(const Heard& heard) const {
    const auto truth = passed_on_.find({heard.from, SlotOf(heard.keyed.ref)});
    return truth != passed_on_.end() && heard.keyed.route.version <= truth->second;
  }

  void PullFormer(std::vector<Heard>* hearsay) {
    const std::set<NodeIndex> complete = AskPages<v1::PullRequest, v1::PullReply>(
        MessageType::kPull, sources_,
        [&](NodeIndex node, const v1::PullReply& reply) { NoteTruths(node, reply); },
        [&](NodeIndex node, const v1::PullReply& reply) {
          if (settled_.empty()) Settle();  // All truths came with the first pages.
          ReadRoutes(reply, [&](KeyedRoute& keyed) {
            Heard heard{node, std::move(keyed), false};
            if (!ImportTruth(heard)) hearsay->push_back(std::move(heard));
          });
        });
    if (settled_.empty()) Settle();
    for (Slot slot : pending_) {  // Half of the truth says nothing about the rest.
      Best& best = best_[slot];
      if (!best.known || best.node == self_ || complete.contains(best.node)) continue;
      best = {};
      settled_[slot] = false;
    }
    for (Heard& heard : *hearsay) heard.stale = IsStale(heard);
  }

  void Rebuild(const std::vector<Slot>& rest, std::vector<Heard>& hearsay) {
    std::map<NodeIndex, std::vector<Slot>> owners;
    for (size_t i = 0; i < after_.nodes().size(); ++i) {
      const auto index = static_cast<NodeIndex>(i);
      const ViewNode& node = after_.node(index);
      const bool worth_asking = node.readable && !node.lease.segments.empty();
      if (index != self_ && worth_asking && !silent_.contains(index)) owners[index] = rest;
    }
    for (auto& [from, heard, stale] : hearsay) {
      heard.ref.key = heard.key;
      const Named named(heard.ref.scope, heard.key, heard.route.version);
      if (heard.published_ms != 0) published_ms_[named] = heard.published_ms;
      const Slot slot = SlotOf(heard.ref);
      const auto older = older_.find(slot);
      const bool known_then = older != older_.end() && older->second.node == from;
      if (best_[slot].node != from && !known_then) continue;
      named_.insert(named);
    }
    ImportOwn(rest);
    const std::set<NodeIndex> answered = AskPages<v1::InventoryRequest, v1::InventoryReply>(
        MessageType::kInventory, owners, [](NodeIndex, const v1::InventoryReply&) {},
        [&](NodeIndex, const v1::InventoryReply& reply) {
          ReadRoutes(reply,
                     [&](KeyedRoute& keyed) { ImportUnlessRefuted(keyed.ref, keyed.route); });
        });
    NoteUnheard(answered);
    ImportHearsay(rest, answered, hearsay);
  }

  void NoteUnheard(const std::set<NodeIndex>& answered) {
    const uint64_t newest = EraOfAll(after_);
    for (size_t i = 0; i < after_.nodes().size(); ++i) {
      const auto index = static_cast<NodeIndex>(i);
      const ViewNode& node = after_.node(index);
      const bool older = Matters(node) && !node.lease.suspect && node.lease.era < newest;
      const bool owner = index != self_ && !node.lease.segments.empty();
      if (older && owner && !answered.contains(index)) unheard_.insert(index);
    }
  }

  // Of owners that do not answer. The others know best themselves what they have.
  void ImportHearsay(const std::vector<Slot>& rest, const std::set<NodeIndex>& answered,
                     std::vector<Heard>& hearsay) {
    std::vector<bool> wanted(slot_count());
    for (Slot slot : rest) wanted[slot] = true;
    for (auto& [from, heard, stale] : hearsay) {
      if (stale || !wanted[SlotOf(heard.ref)]) continue;
      std::erase_if(heard.route.replicas, [&](const Place& place) {
        if (place.owner == kSelf) return true;  // Our own inventory is complete.
        const NodeIndex owner = after_.FindName(core_.names.NameOf(place.owner));
        return owner == routing::kNoNode || answered.contains(owner);
      });
      if (!heard.route.replicas.empty()) ImportUnlessRefuted(heard.ref, heard.route);
    }
  }

  void ImportOwn(const std::vector<Slot>& slots) {
    std::vector<bool> wanted(slot_count());
    for (Slot slot : slots) wanted[slot] = true;
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      for (const ExtentPin& extent : core_.extents.ShardExtents(shard)) {
        const KeyRef ref = extent->ref();
        if (extent->state() != ExtentState::kLive || !wanted[SlotOf(ref)]) continue;
        ImportUnlessRefuted(ref, {extent->version(),
                                  extent->size(),
                                  extent->checksum(),
                                  extent->has_checksum(),
                                  extent->wants_soft_pin(),
                                  {extent->place()}});
      }
    }
  }

  Core& core_;
  const ClusterView& before_;
  const ClusterView& after_;
  const NodeIndex self_;
  const uint64_t oldest_era_;
  std::vector<Slot> pending_;
  std::map<NodeIndex, std::vector<Slot>> sources_;
  std::vector<std::pair<NodeIndex, Truth>> truths_;          // All that were heard.
  std::vector<Best> best_;                                   // By slot.
  std::map<Slot, Best> older_;                               // Where the best one is not whole.
  std::vector<bool> settled_;                                // By slot.
  std::map<std::pair<NodeIndex, Slot>, Version> passed_on_;  // Truths that are, and as of when.
  // Routes of the best truths about slots that are not settled.
  using Named = std::tuple<ScopeIndex, std::string, Version>;
  std::set<Named> named_;
  std::map<Named, uint64_t> published_ms_;  // Where anybody has told.
  std::vector<Slot> kept_;                  // Their authority has them by a newer view than ours.
  std::set<Slot> incredible_;               // Somebody's truth about them was no truth.
  std::set<NodeIndex> silent_;              // Did not answer, and so are not asked again.
  std::set<NodeIndex> unheard_;
};

void SweepRemoved(Core& core, const ClusterView& before, const ClusterView& after) {
  std::map<NameIndex, uint32_t> removed;  // With the instance that has the name now; 0: none.
  for (const routing::ViewNode& node : before.nodes()) {
    const NodeIndex there = after.Find(node.lease.id);
    const uint32_t instance = there == routing::kNoNode ? 0 : after.node(there).lease.instance;
    if (there != routing::kNoNode && instance == node.lease.instance) continue;
    if (there == routing::kNoNode) core.peers.Forget(node.lease.endpoint);
    if (auto name = core.names.IndexOf(node.lease.id.ToString())) removed[*name] = instance;
  }
  removed.erase(kSelf);
  if (removed.empty()) return;
  core.meter.ForgetWriters([&](NameIndex writer) { return removed.contains(writer); });
  const uint64_t changed = core.routes.SweepOwners([&](const Place& place) {
    const auto found = removed.find(place.owner);
    if (found == removed.end()) return false;
    return found->second == 0 || !IsOfInstance(place, found->second);
  });
  core.metrics.GetCounter("routes_swept_total", {}).Add(changed);
}

bool IsAmong(std::span<const NodeIndex> ranks, NodeIndex node, size_t count) {
  const auto first = ranks.first(std::min(ranks.size(), count));
  return node != routing::kNoNode && std::find(first.begin(), first.end(), node) != first.end();
}

}  // namespace

void ApplyView(Core& core, Arrivals& arrivals, const routing::ClusterView& before,
               const routing::ClusterView& after) {
  const NodeId self = core.membership.self();
  const NodeIndex index = after.Find(self);
  const bool lease_lost = core.membership.TakeLeaseLoss();
  // Slots that we know of since a time only before which a member that has just come was one: it
  // has to be asked for what it knows.
  const uint64_t arrival = arrivals.Oldest(core, before, after);
  const uint64_t newest = EraOfAll(after);
  std::vector<Slot> own;
  std::vector<Slot> lost;
  const uint32_t slots = after.slots().count();
  std::vector<bool> foreign(slots);
  for (Slot slot = 0; slot < slots; ++slot) {
    const auto ranks = after.Ranks(slot);
    foreign[slot] = !IsAmong(ranks, index, core.options.route_topk);
    // A slot that nobody else answers for stays here: a draining node serves reads to the end.
    if (ranks.empty()) continue;
    const bool ours = ranks[0] == index;
    if (ours) own.push_back(slot);
    const bool blind = arrival < newest && core.routes.EraOf(slot) > arrival;
    if (!ours || lease_lost || blind) lost.push_back(slot);
  }
  // By the table and not by the difference of the views: some that are served were in no view
  // that named us, and a peer may have fenced others that we never lost.
  core.routes.Lose(lost, lease_lost);
  core.routes.DropMirrors(foreign, core.runtime.NowMs(), after.revision());
  std::erase_if(own, [&](Slot slot) { return core.routes.Serves(slot); });
  Takeover takeover(core, before, after);
  if (!own.empty()) takeover.Run(own);
  arrivals.Note(core, after, arrival, takeover.unheard());
  SweepRemoved(core, before, after);
}

}  // namespace mooncake::node

#include "routing/view.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/hash.h"
#include "unit/routing/leases.h"

namespace mooncake::routing {
namespace {

TEST(ClusterView, EmptyKnowsNobody) {
  for (const auto& view : {EmptyView(), BuildView({})}) {
    EXPECT_TRUE(view->nodes().empty());
    EXPECT_TRUE(view->Ranks(0).empty());
    EXPECT_TRUE(view->Ranks(kSlotCount - 1).empty());
    EXPECT_EQ(view->Find({"a", 1}), kNoNode);
    EXPECT_EQ(view->FindStable("a"), kNoNode);
    EXPECT_EQ(view->FindName("a:1"), kNoNode);
    EXPECT_TRUE(view->PlacementOrder(1, "", 3).empty());
  }
  EXPECT_EQ(EmptyView()->revision(), 0u);
}

TEST(ClusterView, HasAsManyRanksAsAuthoritiesUpToTheMaximum) {
  for (int count = 1; count <= 6; ++count) {
    auto view = BuildView(MakeLeases(count));
    for (Slot slot = 0; slot < kSlotCount; slot += 97) {
      auto ranks = view->Ranks(slot);
      ASSERT_EQ(ranks.size(), std::min<size_t>(static_cast<size_t>(count), kRanksMax));
      EXPECT_EQ(std::set<NodeIndex>(ranks.begin(), ranks.end()).size(), ranks.size());
    }
  }
  EXPECT_TRUE(BuildView(MakeLeases(2))->Ranks(kSlotCount).empty());
}

// A change to a node, and what the node may do then.
struct RoleCase {
  const char* what;
  std::function<void(LeaseRecord&)> change;
  bool authority;
  bool storage;
  bool readable;
};

TEST(ClusterView, DerivesWhatANodeMayDo) {
  auto state = [](NodeState value) { return [value](LeaseRecord& l) { l.state = value; }; };
  auto label = [](std::string name, std::string value) {
    return [name, value](LeaseRecord& l) { l.labels[name] = value; };
  };
  const std::vector<RoleCase> cases = {
      {"as it is", [](LeaseRecord&) {}, true, true, true},
      {"standby", state(NodeState::kStandby), false, false, true},
      {"draining", state(NodeState::kDraining), false, false, true},
      {"sealed", state(NodeState::kSealed), false, false, false},
      {"offline", state(NodeState::kOffline), false, false, false},
      {"suspect", [](LeaseRecord& l) { l.suspect = true; }, false, false, true},
      {"no labels", [](LeaseRecord& l) { l.labels.clear(); }, false, false, true},
      {"route=false", label("route", "false"), false, true, true},
      {"route=TRUE", label("route", "TRUE"), false, true, true},
      {"storage=false", label("storage", "false"), true, false, true},
      {"no segment", [](LeaseRecord& l) { l.segments.clear(); }, true, false, true},
      {"empty segment", [](LeaseRecord& l) { l.segments[0].capacity_bytes = 0; }, true, false,
       true},
      {"draining segment", [](LeaseRecord& l) { l.segments[0].state = NodeState::kDraining; }, true,
       false, true},
      {"unreachable", [](LeaseRecord& l) { l.endpoint.clear(); }, true, true, false},
      {"newer minor", [](LeaseRecord& l) { l.protocol_minor = 9; }, true, true, true},
      {"newer major", [](LeaseRecord& l) { l.protocol_major = 2; }, false, false, false},
      {"more slots", [](LeaseRecord& l) { l.slot_bits = 17; }, false, false, false},
      {"major 0", [](LeaseRecord& l) { l.protocol_major = 0; }, false, false, false},
  };
  for (const RoleCase& c : cases) {
    std::vector<LeaseRecord> leases = {MakeLease("other"), MakeLease("subject")};
    c.change(leases[1]);
    auto view = BuildView(leases);
    NodeIndex index = view->FindStable("subject");
    EXPECT_EQ(view->node(index).authority, c.authority) << c.what;
    EXPECT_EQ(view->node(index).storage, c.storage) << c.what;
    EXPECT_EQ(view->node(index).readable, c.readable) << c.what;
    EXPECT_EQ(view->Ranks(7).size(), c.authority ? 2u : 1u) << c.what;
    EXPECT_EQ(view->PlacementOrder(7, "", 9).size(), c.storage ? 2u : 1u) << c.what;
  }
}

TEST(ClusterView, TellsWhetherOnlySuspectsStore) {
  auto leases = MakeLeases(4);
  leases[0].labels["pool"] = leases[1].labels["pool"] = "fast";
  leases[3].labels["storage"] = "false";
  EXPECT_FALSE(BuildView(leases)->OnlySuspectsStore(""));
  leases[0].suspect = true;
  EXPECT_FALSE(BuildView(leases)->OnlySuspectsStore("fast"));
  leases[1].suspect = true;
  EXPECT_TRUE(BuildView(leases)->OnlySuspectsStore("fast"));
  EXPECT_FALSE(BuildView(leases)->OnlySuspectsStore(""));
  EXPECT_FALSE(BuildView(leases)->OnlySuspectsStore("slow"));
  // Those whose suspicion tells nothing of whether there is room.
  leases[0].segments.clear();
  leases[1].slot_bits = 17;
  EXPECT_FALSE(BuildView(leases)->OnlySuspectsStore("fast"));
  leases[2].suspect = true;
  EXPECT_TRUE(BuildView(leases)->OnlySuspectsStore(""));
  EXPECT_FALSE(BuildView({})->OnlySuspectsStore(""));
}

constexpr auto kActive = NodeState::kActive;
constexpr auto kDraining = NodeState::kDraining;
constexpr auto kStandby = NodeState::kStandby;
constexpr auto kSealed = NodeState::kSealed;
constexpr auto kOffline = NodeState::kOffline;

// The states of nodes "a", "b" and so on, and who answers for slots.
struct ChargeCase {
  const char* what;
  std::vector<NodeState> states;
  std::string authorities;
  std::function<void(std::vector<LeaseRecord>&)> change = [](std::vector<LeaseRecord>&) {};
};

TEST(ClusterView, DrainingNodesAnswerWhereNoActiveOneKeepsRoutesAndStandbyOnesAfterThem) {
  const auto a_is_suspect = [](std::vector<LeaseRecord>& leases) { leases[0].suspect = true; };
  const auto a_routes_not = [](std::vector<LeaseRecord>& leases) {
    leases[0].labels["route"] = "false";
  };
  const auto a_has_no_segment = [](std::vector<LeaseRecord>& leases) {
    leases[0].segments.clear();
  };
  const std::vector<ChargeCase> cases = {
      {"one is active", {kDraining, kActive, kStandby}, "b"},
      {"none is active", {kDraining, kStandby, kDraining, kOffline}, "ac"},
      {"all stand by", {kStandby, kStandby, kSealed}, "ab"},
      {"none can", {kSealed, kOffline}, ""},
      {"the active one keeps no routes", {kActive, kDraining}, "b", a_routes_not},
      {"the draining one keeps no routes", {kDraining, kStandby}, "b", a_routes_not},
      {"draining, no segment", {kDraining, kDraining}, "ab", a_has_no_segment},
      {"standby, no segment", {kStandby, kStandby}, "b", a_has_no_segment},
      // What only the suspect one knows of must not be missed as long as it may live.
      {"the active one is suspect", {kActive, kDraining}, "", a_is_suspect},
      {"a draining one is suspect", {kDraining, kDraining, kStandby}, "b", a_is_suspect},
      {"the only draining one is suspect", {kDraining, kStandby}, "", a_is_suspect},
      {"the active one is of another major",
       {kActive, kDraining},
       "b",
       [](std::vector<LeaseRecord>& leases) { leases[0].protocol_major = 2; }},
  };
  for (const ChargeCase& c : cases) {
    std::vector<LeaseRecord> leases;
    for (size_t i = 0; i < c.states.size(); ++i) {
      leases.push_back(MakeLease(std::string(1, static_cast<char>('a' + i))));
      leases.back().state = c.states[i];
    }
    c.change(leases);
    const auto view = BuildView(leases);
    std::string authorities;
    for (const ViewNode& node : view->nodes()) {
      if (node.authority) authorities += node.lease.id.stable_id;
      EXPECT_EQ(node.storage, node.lease.state == kActive && !node.lease.suspect &&
                                  node.lease.protocol_major == 1)
          << c.what;
    }
    EXPECT_EQ(authorities, c.authorities) << c.what;
    std::set<std::string> ranked;
    for (NodeIndex node : view->Ranks(9)) ranked.insert(view->node(node).lease.id.stable_id);
    std::string in_order;
    for (const std::string& name : ranked) in_order += name;
    EXPECT_EQ(in_order, c.authorities) << c.what;
  }
}

TEST(ClusterView, OfTwoDrainingNodesOfANameTheHigherEpochAnswers) {
  auto leases = std::vector<LeaseRecord>{MakeLease("a", 1), MakeLease("a", 2), MakeLease("b")};
  for (LeaseRecord& lease : leases) lease.state = kDraining;
  const auto view = BuildView(leases);
  EXPECT_FALSE(view->node(view->Find({"a", 1})).authority);
  EXPECT_TRUE(view->node(view->Find({"a", 1})).routes);
  EXPECT_TRUE(view->node(view->Find({"a", 2})).authority);
  EXPECT_EQ(view->Ranks(3).size(), 2u);
}

TEST(ClusterView, HasAtMostSoManyNodes) {
  auto leases = MakeLeases(static_cast<int>(kNodesMax) + 5);
  for (LeaseRecord& lease : leases) lease.labels["route"] = "false";
  leases.front().labels["route"] = "true";
  leases.back() = MakeLease("z");  // The last by name: left out.
  const auto view = BuildView(leases);
  EXPECT_EQ(view->nodes().size(), kNodesMax);
  EXPECT_EQ(RankNames(*view, 3).size(), 1u);
}

TEST(ClusterView, RouteScopeFiltersOnlyForObserversThatHaveOne) {
  auto leases = MakeLeases(3);
  leases[0].labels["route_scope"] = "east";
  leases[1].labels["route_scope"] = "west";
  struct Case {
    const char* observer;
    size_t authorities;
  };
  for (const Case& c : {Case{"", 3}, Case{"east", 1}, Case{"west", 1}, Case{"north", 0}}) {
    EXPECT_EQ(BuildView(leases, c.observer)->Ranks(5).size(), c.authorities) << c.observer;
  }
}

TEST(ClusterView, ReadsWeightsAndIgnoresNonsense) {
  struct Case {
    const char* text;
    double weight;
  };
  const Case cases[] = {{"2", 2.0},  {"0.25", 0.25}, {"1e2", 100.0}, {"", 1.0},   {"0", 1.0},
                        {"-3", 1.0}, {"nan", 1.0},   {"inf", 1.0},   {"2x", 1.0}, {" 2", 1.0}};
  for (const Case& c : cases) {
    auto leases = MakeLeases(1);
    leases[0].labels["route_weight"] = c.text;
    EXPECT_EQ(BuildView(leases)->node(0).weight, c.weight) << c.text;
  }
}

TEST(ClusterView, TheLastLeaseOfAnIdWins) {
  LeaseRecord first = MakeLease("a");
  LeaseRecord last = MakeLease("a");
  last.endpoint = "last:1";
  auto view = BuildView({first, MakeLease("b"), last});
  ASSERT_EQ(view->nodes().size(), 2u);
  EXPECT_EQ(view->node(view->FindStable("a")).lease.endpoint, "last:1");
}

TEST(ClusterView, FindsNodesByEveryName) {
  auto view = BuildView({MakeLease("a", 3), MakeLease("a", 7), MakeLease("b", 1),
                         MakeLease("a:7", 2), MakeLease("10.0.0.1:80", 4), MakeLease("", 1)});
  struct Case {
    const char* name;
    const char* found;
  };
  const Case cases[] = {
      {"a", "a:7"},
      {"a:3", "a:3"},
      {"a:7", "a:7"},  // The incarnation before the stable_id of the same spelling.
      {"a:7:2", "a:7:2"},
      {"b:1", "b:1"},
      {"10.0.0.1:80", "10.0.0.1:80:4"},
      {"10.0.0.1:80:4", "10.0.0.1:80:4"},
      {"", ":1"},
      {"a:5", nullptr},
      {"a:8", nullptr},
      {"a:2", nullptr},
      {"b:", nullptr},
      {"b:+1", nullptr},
      {"b:1x", nullptr},
      {"b:99999999999999999999999", nullptr},
      {"c", nullptr},
  };
  for (const Case& c : cases) {
    NodeIndex index = view->FindName(c.name);
    if (c.found == nullptr) {
      EXPECT_EQ(index, kNoNode) << c.name;
    } else {
      ASSERT_NE(index, kNoNode) << c.name;
      EXPECT_EQ(view->node(index).lease.id.ToString(), c.found) << c.name;
    }
  }
}

TEST(ClusterView, FindsEachOfAThousandNodes) {
  auto view = BuildView(MakeLeases(1000));
  for (NodeIndex i = 0; i < 1000; ++i) {
    EXPECT_EQ(view->Find(view->node(i).lease.id), i);
    EXPECT_EQ(view->FindStable(view->node(i).lease.id.stable_id), i);
  }
  EXPECT_EQ(view->FindStable("node-1000"), kNoNode);
}

TEST(ClusterView, AnUpgradedNodeKeepsItsSlots) {
  auto leases = MakeLeases(5);
  auto before = AllRankNames(*BuildView(leases));
  // Both incarnations are Active for a while: the higher epoch alone is the authority.
  leases.push_back(MakeLease("node-0002", 8));
  for (int step = 0; step < 2; ++step) {
    auto view = BuildView(leases);
    for (Slot slot = 0; slot < kSlotCount; ++slot) {
      auto expected = before[slot];
      std::replace(expected.begin(), expected.end(), std::string("node-0002:1"),
                   std::string("node-0002:8"));
      ASSERT_EQ(RankNames(*view, slot), expected);
    }
    leases.erase(leases.begin() + 2);
    std::reverse(leases.begin(), leases.end());
  }
}

// Of ranks without regard to hosts, the best one on another host than the first, brought forward.
std::vector<std::string> Spread(std::vector<std::string> ranks,
                                const std::map<std::string, std::string>& hosts) {
  const auto other = std::find_if(ranks.begin() + 1, ranks.end(), [&](const std::string& name) {
    return hosts.at(name) != hosts.at(ranks[0]);
  });
  if (other != ranks.end()) std::rotate(ranks.begin() + 1, other, other + 1);
  return ranks;
}

TEST(ClusterView, TheSecondRankIsOnAnotherHostWhereOneOfTheRanksIs) {
  auto leases = MakeLeases(12);
  const auto plain = AllRankNames(*BuildView(leases));  // All on one host.
  std::map<std::string, std::string> hosts;
  for (size_t i = 0; i < leases.size(); ++i) {
    const std::string host = "host-" + std::to_string(i % 3);
    leases[i].host = i % 2 == 0 ? host : "pod-" + std::to_string(i);
    if (i % 2 == 1) leases[i].labels["host"] = host;  // Says more than the machine.
    hosts[leases[i].id.ToString()] = host;
  }
  const auto view = BuildView(leases);
  int spread = 0;
  int together = 0;
  for (Slot slot = 0; slot < kSlotCount; ++slot) {
    const auto ranks = RankNames(*view, slot);
    ASSERT_EQ(ranks, Spread(plain[slot], hosts)) << slot;
    spread += ranks != plain[slot] ? 1 : 0;
    together += hosts[ranks[0]] == hosts[ranks[1]] ? 1 : 0;
  }
  EXPECT_GT(spread, kSlotCount / 5);     // 3 of the 11 others share the host.
  EXPECT_LT(together, kSlotCount / 50);  // All three that come next: 1 in 165.
}

TEST(ClusterView, AStandbySuccessorLeavesTheSlotsWithItsPredecessor) {
  auto leases = MakeLeases(3);
  auto before = AllRankNames(*BuildView(leases));
  leases.push_back(MakeLease("node-0001", 2));
  leases.back().state = NodeState::kStandby;
  auto view = BuildView(leases);
  EXPECT_EQ(AllRankNames(*view), before);
  EXPECT_TRUE(view->node(view->Find({"node-0001", 1})).authority);
}

TEST(PlacementOrder, IsStableWhenOthersComeAndGo) {
  auto leases = MakeLeases(20);
  auto names = [](const ClusterView& view, uint64_t key_hash) {
    std::vector<std::string> result;
    for (NodeIndex i : view.PlacementOrder(key_hash, "", 99)) {
      result.push_back(view.node(i).lease.id.stable_id);
    }
    return result;
  };
  auto full = BuildView(leases);
  leases.erase(leases.begin() + 4);
  leases[7].labels["route_weight"] = "9";  // Not a matter of placement.
  auto less = BuildView(leases);
  for (uint64_t key_hash = 1; key_hash < 500; ++key_hash) {
    auto expected = names(*full, key_hash);
    ASSERT_EQ(expected.size(), 20u);
    std::erase(expected, "node-0004");
    ASSERT_EQ(names(*less, key_hash), expected);
  }
}

TEST(PlacementOrder, GivesTheFirstOfTheWholeOrder) {
  auto view = BuildView(MakeLeases(30));
  for (uint64_t key_hash = 1; key_hash < 100; ++key_hash) {
    auto whole = view->PlacementOrder(key_hash, "", 30);
    for (size_t count : {0, 1, 2, 7, 29, 30, 31}) {
      auto some = view->PlacementOrder(key_hash, "", count);
      ASSERT_EQ(some.size(), std::min<size_t>(count, 30));
      EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin()));
    }
  }
}

TEST(PlacementOrder, StaysInThePool) {
  auto leases = MakeLeases(9);
  for (size_t i = 0; i < 6; ++i) leases[i].labels["pool"] = i < 3 ? "hot" : "cold";
  leases[0].state = NodeState::kDraining;
  auto view = BuildView(leases);
  struct Case {
    const char* pool;
    size_t nodes;
  };
  for (const Case& c : {Case{"", 8}, Case{"hot", 2}, Case{"cold", 3}, Case{"none", 0}}) {
    auto order = view->PlacementOrder(42, c.pool, 99);
    EXPECT_EQ(order.size(), c.nodes) << c.pool;
    for (NodeIndex i : order) {
      EXPECT_TRUE(*c.pool == '\0' || view->node(i).Label("pool") == c.pool);
    }
  }
}

TEST(PlacementOrder, NamesOneIncarnationOfANode) {
  auto leases = MakeLeases(2);
  leases.push_back(MakeLease("node-0001", 2));
  auto view = BuildView(leases);
  auto order = view->PlacementOrder(1, "", 9);
  ASSERT_EQ(order.size(), 2u);
  EXPECT_EQ(std::count(order.begin(), order.end(), view->Find({"node-0001", 2})), 1);
  // While the successor cannot take copies, its predecessor does.
  leases.back().state = NodeState::kStandby;
  view = BuildView(leases);
  order = view->PlacementOrder(1, "", 9);
  EXPECT_EQ(std::count(order.begin(), order.end(), view->Find({"node-0001", 1})), 1);
}

TEST(PlacementOrder, SpreadsFirstChoicesEvenly) {
  auto view = BuildView(MakeLeases(10));
  std::vector<int> chosen(10);
  for (int i = 0; i < 100'000; ++i) {
    uint64_t key_hash = base::Mix64(static_cast<uint64_t>(i) + 1);
    ++chosen[view->PlacementOrder(key_hash, "", 1)[0]];
  }
  // 10,000 expected, with a standard deviation of 95.
  for (int count : chosen) EXPECT_NEAR(count, 10'000, 500);
}

}  // namespace
}  // namespace mooncake::routing

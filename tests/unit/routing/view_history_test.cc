// How views change when the membership does, and how evenly the slots are shared.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "routing/rendezvous.h"
#include "routing/view.h"
#include "unit/routing/leases.h"

namespace mooncake::routing {
namespace {

struct Spread {
  double worst;        // The largest deviation from the fair share, as a part of it.
  double mean_square;  // The root of the mean square of the deviations, likewise.
};

Spread SpreadOf(const ClusterView& view) {
  double nodes = static_cast<double>(view.nodes().size());
  double fair = view.slots().count() / nodes;
  Spread spread{0, 0};
  for (const auto& [name, slots] : SlotShares(view)) {
    double deviation = slots / fair - 1;
    spread.worst = std::max(spread.worst, std::abs(deviation));
    spread.mean_square += deviation * deviation / nodes;
  }
  spread.mean_square = std::sqrt(spread.mean_square);
  std::printf("%4.0f nodes: largest deviation from the fair share %.1f %%, rms %.1f %%\n", nodes,
              spread.worst * 100, spread.mean_square * 100);
  return spread;
}

// Independent choices leave each node a binomial number of slots, with a standard deviation of
// 1 / sqrt(fair share) of it. A good hash is that even, and nothing without memory is more.
TEST(SlotShares, AreAsEvenAsIndependentChoicesCanBe) {
  for (int count : {10, 100, 1000}) {
    Spread spread = SpreadOf(*BuildView(MakeLeases(count)));
    double deviation = std::sqrt(count / double{kSlotCount});
    EXPECT_LT(spread.mean_square, 1.5 * deviation) << count;
    EXPECT_LT(spread.worst, 4.5 * deviation) << count;
  }
}

TEST(SlotShares, TwiceTheWeightIsTwiceTheShare) {
  for (const char* weight : {"2", "0.5", "8"}) {
    auto leases = MakeLeases(20);
    for (size_t i = 0; i < 10; ++i) leases[i].labels["route_weight"] = weight;
    auto shares = SlotShares(*BuildView(leases));
    double weighted = 0;
    double plain = 0;
    for (const auto& [name, slots] : shares) (name < "node-0010" ? weighted : plain) += slots;
    EXPECT_NEAR(weighted / plain, std::stod(weight), 0.05 * std::stod(weight));
  }
}

TEST(SlotShares, LaterRanksAreEvenToo) {
  auto view = BuildView(MakeLeases(10));
  for (size_t rank = 1; rank < kRanksMax; ++rank) {
    std::vector<int> shares(10);
    for (Slot slot = 0; slot < kSlotCount; ++slot) ++shares[view->Ranks(slot)[rank]];
    for (int share : shares) EXPECT_NEAR(share, 6554, 6554 * 0.06) << rank;
  }
}

TEST(ViewBuilder, AgreesWithSortingAllCosts) {
  auto leases = MakeLeases(12);
  for (size_t i = 0; i < 4; ++i) leases[i].labels["route_weight"] = std::to_string(i + 1);
  auto view = BuildView(leases);
  for (Slot slot = 0; slot < kSlotCount; slot += 31) {
    std::vector<std::pair<uint64_t, std::string>> all;
    for (const ViewNode& node : view->nodes()) {
      const NodeId& id = node.lease.id;
      all.emplace_back(CostOf(MakeContender(id.stable_id, node.weight), slot), id.ToString());
    }
    std::sort(all.begin(), all.end());
    std::vector<std::string> expected;
    for (size_t i = 0; i < kRanksMax; ++i) expected.push_back(all[i].second);
    ASSERT_EQ(RankNames(*view, slot), expected) << slot;
  }
}

// The ranks by definition: everybody's cost, sorted.
void ExpectRanksByDefinition(const ClusterView& view, Slot step) {
  std::vector<Contender> contenders;
  for (const ViewNode& node : view.nodes()) {
    contenders.push_back(MakeContender(node.lease.id.stable_id, node.weight));
  }
  for (Slot slot = 0; slot < view.slots().count(); slot += step) {
    std::vector<std::pair<uint64_t, NodeIndex>> all;  // The nodes are in the order of names.
    for (size_t i = 0; i < contenders.size(); ++i) {
      all.emplace_back(CostOf(contenders[i], slot), static_cast<NodeIndex>(i));
    }
    std::partial_sort(all.begin(), all.begin() + kRanksMax, all.end());
    std::vector<NodeIndex> expected;
    for (size_t i = 0; i < kRanksMax; ++i) expected.push_back(all[i].second);
    const auto ranks = view.Ranks(slot);
    ASSERT_EQ(std::vector<NodeIndex>(ranks.begin(), ranks.end()), expected) << slot;
  }
}

// Where there are many nodes, the hash alone leaves out those that cannot be at the front.
TEST(ViewBuilder, LeavingOutWhoIsFarBehindChangesNoRank) {
  const std::vector<std::vector<std::string>> mixes = {
      {"1"},
      {"0.25", "1", "3", "0", "-1", "x", ""},                    // The last four count as 1.
      {"0.001", "0.0009765625", "1023.9", "1024", "4096", "1"},  // To the ends of the range.
  };
  for (int count : {31, 32, 33, 64, 300}) {
    for (const auto& mix : mixes) {
      auto leases = MakeLeases(count);
      for (size_t i = 0; i < leases.size(); ++i) {
        leases[i].labels["route_weight"] = mix[i % mix.size()];
      }
      ExpectRanksByDefinition(*BuildView(leases), 61);
    }
    // One so heavy that those who pass are mostly it alone.
    auto leases = MakeLeases(count);
    for (LeaseRecord& lease : leases) lease.labels["route_weight"] = "0.0009765625";
    leases[7].labels["route_weight"] = "1024";
    ExpectRanksByDefinition(*BuildView(leases), 61);
  }
}

TEST(ViewBuilder, ManyDeparturesAndArrivalsAtOnceLeaveTheRanksByDefinition) {
  const auto all = MakeLeases(200);
  ViewBuilder builder("");
  ExpectRanksByDefinition(*builder.Build(1, {all.begin(), all.begin() + 180}), 97);
  ExpectRanksByDefinition(*builder.Build(2, {all.begin() + 60, all.begin() + 180}), 97);
  ExpectRanksByDefinition(*builder.Build(3, {all.begin() + 50, all.begin() + 190}), 97);
  ExpectRanksByDefinition(*builder.Build(4, all), 97);
}

TEST(ViewBuilder, MoreSlotsAreThoseOfTheDefaultAndOthers) {
  auto leases = MakeLeases(40);
  const auto few = AllRankNames(*BuildView(leases));
  for (LeaseRecord& lease : leases) lease.slot_bits = 18;
  ViewBuilder builder("", Slots(18));
  const auto view = builder.Build(1, leases);
  ASSERT_EQ(view->slots().count(), 4 * kSlotCount);
  ExpectRanksByDefinition(*view, 127);
  EXPECT_TRUE(view->Ranks(4 * kSlotCount).empty());
  const auto many = AllRankNames(*view);
  EXPECT_TRUE(std::equal(few.begin(), few.end(), many.begin()));  // Slots are hashed by number.
  const uint64_t hash = uint64_t{0b1011'0000'1111'0101'01} << 46 | 12'345;
  EXPECT_EQ(view->slots().Of(hash), 0b1011'0000'1111'0101'01u);
  EXPECT_EQ(RankNames(*view, view->slots().Of(hash))[0],
            view->node(view->RanksOf(hash)[0]).lease.id.ToString());
  EXPECT_LT(SpreadOf(*view).worst, 4.5 * std::sqrt(40 / double{4 * kSlotCount}));
  leases.erase(leases.begin() + 3);  // Step by step, too.
  ExpectRanksByDefinition(*builder.Build(2, leases), 127);
}

TEST(ViewBuilder, RemovingANodeMovesOnlyItsSlots) {
  auto leases = MakeLeases(12);
  ViewBuilder builder("");
  auto before = AllRankNames(*builder.Build(1, leases));
  leases.erase(leases.begin() + 5);
  auto view = builder.Build(2, leases);
  EXPECT_EQ(view->revision(), 2u);
  auto after = AllRankNames(*view);
  for (Slot slot = 0; slot < kSlotCount; ++slot) {
    // The others close ranks; where it had one, somebody new comes last.
    auto rest = before[slot];
    std::erase(rest, "node-0005:1");
    ASSERT_TRUE(std::equal(rest.begin(), rest.end(), after[slot].begin())) << slot;
    ASSERT_EQ(after[slot].size(), kRanksMax);
  }
}

TEST(ViewBuilder, AddingANodeTakesOnlyWhatItGets) {
  auto leases = MakeLeases(12);
  ViewBuilder builder("");
  auto before = AllRankNames(*builder.Build(1, leases));
  leases.push_back(MakeLease("newcomer"));
  auto after = AllRankNames(*builder.Build(2, leases));
  int led = 0;
  for (Slot slot = 0; slot < kSlotCount; ++slot) {
    led += after[slot][0] == "newcomer:1";
    auto rest = after[slot];
    std::erase(rest, "newcomer:1");
    ASSERT_TRUE(std::equal(rest.begin(), rest.end(), before[slot].begin())) << slot;
  }
  EXPECT_NEAR(led, kSlotCount / 13, kSlotCount / 13 * 0.1);
}

TEST(ViewBuilder, TheOrderOfLeasesDoesNotMatter) {
  auto leases = MakeLeases(9);
  auto expected = AllRankNames(*BuildView(leases));
  std::mt19937 random(3);
  for (int i = 0; i < 5; ++i) {
    std::shuffle(leases.begin(), leases.end(), random);
    EXPECT_EQ(AllRankNames(*BuildView(leases)), expected);
  }
}

TEST(ViewBuilder, EarlierViewsStayAsTheyWere) {
  ViewBuilder builder("");
  auto first = builder.Build(1, MakeLeases(6));
  auto names = AllRankNames(*first);
  builder.Build(2, MakeLeases(2));
  builder.Build(3, {});
  EXPECT_EQ(AllRankNames(*first), names);
}

// Changes a random part of the membership.
void Mutate(std::mt19937& random, int population, std::map<std::string, LeaseRecord>& leases) {
  std::string name = "n" + std::to_string(random() % static_cast<uint32_t>(population));
  auto [lease, is_new] = leases.try_emplace(name, MakeLease(name));
  if (is_new) return;
  switch (random() % 6) {
    case 0: lease->second.suspect = !lease->second.suspect; break;
    case 3: lease->second.state = static_cast<NodeState>(random() % 3); break;
    case 1: lease->second.labels["route_weight"] = std::to_string(random() % 4); break;
    case 2: ++lease->second.id.epoch; break;
    default: leases.erase(lease);
  }
}

TEST(ViewBuilder, StepByStepEqualsFromScratchInRandomHistories) {
  // Populations around the ranks shown and kept, and one where changes are a small part.
  for (int population : {3, 6, 10, 14, 60}) {
    std::mt19937 random(static_cast<uint32_t>(population));
    std::map<std::string, LeaseRecord> leases;
    for (int i = 0; i < population / 2; ++i) Mutate(random, population, leases);
    ViewBuilder builder("");
    for (uint64_t step = 1; step <= 40; ++step) {
      // Mostly one change at a time, now and then a landslide.
      int changes = random() % 8 == 0 ? population / 3 : 1;
      for (int i = 0; i < changes; ++i) Mutate(random, population, leases);
      if (step % 13 == 0) {  // All drain: they answer then.
        for (auto& [name, lease] : leases) lease.state = NodeState::kDraining;
      }
      std::vector<LeaseRecord> list;
      for (const auto& [name, lease] : leases) list.push_back(lease);
      auto stepwise = builder.Build(step, list);
      auto afresh = BuildView(list);
      for (Slot slot = 0; slot < kSlotCount; ++slot) {
        auto found = stepwise->Ranks(slot);
        auto expected = afresh->Ranks(slot);
        ASSERT_TRUE(std::equal(found.begin(), found.end(), expected.begin(), expected.end()))
            << "population " << population << " step " << step << " slot " << slot;
      }
    }
  }
}

}  // namespace
}  // namespace mooncake::routing

#include "routing/slot_set.h"

#include <gtest/gtest.h>

#include <vector>

#include "unit/routing/leases.h"

namespace mooncake::routing {
namespace {

TEST(SlotSet, AFirstViewGainsAllThatANodeLeads) {
  auto view = BuildView(MakeLeases(1));
  EXPECT_EQ(GainedSlots(*EmptyView(), *view, {"node-0000", 1}).size(), kSlotCount);
  EXPECT_TRUE(LostSlots(*EmptyView(), *view, {"node-0000", 1}).empty());
  EXPECT_EQ(LostSlots(*view, *EmptyView(), {"node-0000", 1}).size(), kSlotCount);
}

TEST(SlotSet, TheSurvivorsShareWhatALeaverHad) {
  auto leases = MakeLeases(4);
  auto before = BuildView(leases);
  leases.pop_back();
  auto after = BuildView(leases);
  auto lost = LostSlots(*before, *after, {"node-0003", 1});
  size_t gained = 0;
  for (const LeaseRecord& lease : leases) {
    auto slots = GainedSlots(*before, *after, lease.id);
    gained += slots.size();
    for (Slot slot : slots) EXPECT_EQ(RankNames(*before, slot)[1], lease.id.ToString());
    EXPECT_TRUE(LostSlots(*before, *after, lease.id).empty());
  }
  EXPECT_GT(lost.size(), 0u);
  EXPECT_EQ(gained, lost.size());
}

TEST(SlotSet, ANewIncarnationGainsItsSlots) {
  auto before = BuildView({MakeLease("a", 1), MakeLease("b", 1)});
  auto after = BuildView({MakeLease("a", 2), MakeLease("b", 1)});
  EXPECT_EQ(GainedSlots(*before, *after, {"a", 2}), LostSlots(*before, *after, {"a", 1}));
  EXPECT_FALSE(GainedSlots(*before, *after, {"a", 2}).empty());
  EXPECT_TRUE(GainedSlots(*before, *after, {"b", 1}).empty());
  EXPECT_TRUE(GainedSlots(*before, *after, {"stranger", 1}).empty());
}

}  // namespace
}  // namespace mooncake::routing

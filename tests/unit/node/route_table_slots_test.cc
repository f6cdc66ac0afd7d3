// Slots that come, go and are passed on: who may have served them, and what that node knows.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "unit/node/route_tables.h"

namespace mooncake::node {
namespace {

using RouteTableSlotsTest = RouteTableTest;

TEST_F(RouteTableSlotsTest, AFormerSlotIsTheWholeTruthForAllWhoAskAndComesBackEmpty) {
  Serve("k");
  Version version = 0;
  ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &version), kItemOk);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.Lose(slots);
  for (bool passed_on : {false, true}) {
    const Fenced fenced = table_.Fence(slots);
    ASSERT_EQ(fenced.served.size(), 1u);
    EXPECT_EQ(fenced.served[0].slot, slots[0]);
    EXPECT_EQ(fenced.served[0].upto, version);
    EXPECT_EQ(fenced.served[0].passed_on, passed_on);
  }
  std::vector<Truth> known;
  EXPECT_EQ(table_.BeginTakeover(slots, 2, &known), (std::vector<Slot>{slots[0]}));
  ASSERT_EQ(known.size(), 1u);
  EXPECT_EQ(known[0].upto, version);
  EXPECT_EQ(Look("k"), kItemRetryLater);
  table_.EndTakeover(slots, 2);
  EXPECT_EQ(Look("k"), CodeOf(ErrorCode::kNotFound));
}

TEST_F(RouteTableSlotsTest, ATruthCoversEveryVersionThatItsServerHasGiven) {
  Serve("k", 1);
  Serve("other", 9);  // From here on the versions are of this term.
  Version version = 0;
  ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &version), kItemOk);
  Superseded superseded;
  ASSERT_EQ(table_.Remove(RefOf("k"), &superseded), kItemOk);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  EXPECT_GE(table_.Fence(slots).served.at(0).upto, version);
}

TEST_F(RouteTableSlotsTest, ASlotThatIsNotServedAnyMoreNamesItsBytesButPinsNone) {
  Serve("k");
  ExtentPin mine = Live(extents_, "k", 100);
  const Place place = mine->place();
  ASSERT_EQ(Publish("k", {.size = 100, .local = mine}), kItemOk);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.Lose(slots);
  const auto routes = table_.Export(slots[0] % RouteTable::kShards, [](Slot) { return true; });
  ASSERT_EQ(routes.size(), 1u);
  EXPECT_EQ(routes[0].route.replicas, (std::vector<Place>{place}));
  extents_.Retire(*mine);
  mine = {};
  EXPECT_EQ(extents_.Usage().first, 0u);
}

TEST_F(RouteTableSlotsTest, APendingSlotIsNotCompleteForWhoeverPullsIt) {
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.BeginTakeover(slots);
  EXPECT_TRUE(table_.Fence(slots).served.empty());
  table_.EndTakeover(slots, 5);  // Too late: it was fenced.
  EXPECT_FALSE(table_.Serves(slots[0]));
}

TEST_F(RouteTableSlotsTest, AnAskerWithAnOlderViewThanOursTakesNoSlot) {
  Serve("k", 5);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  EXPECT_EQ(table_.Fence(slots, 4).kept, (std::vector<Slot>{slots[0]}));
  EXPECT_TRUE(table_.Serves(slots[0]));
  EXPECT_EQ(table_.Fence(slots, 5).served.size(), 1u);
  EXPECT_FALSE(table_.Serves(slots[0]));
  table_.BeginTakeover(slots, 7);
  EXPECT_EQ(table_.Fence(slots, 6).kept, (std::vector<Slot>{slots[0]}));
  table_.EndTakeover(slots, 7);
  EXPECT_TRUE(table_.Serves(slots[0]));
}

TEST_F(RouteTableSlotsTest, AnAbandonedTakeoverServesNothing) {
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.BeginTakeover(slots, 7);
  table_.AbandonTakeover(slots);
  table_.EndTakeover(slots, 7);
  EXPECT_EQ(Look("k"), kItemWrongAuthority);
}

// Another key of the same slot.
std::string Neighbour(std::string_view key) {
  for (int i = 0;; ++i) {
    std::string other = std::string(key) + std::to_string(i);
    if (SlotOf(RefOf(other)) == SlotOf(RefOf(key))) return other;
  }
}

TEST_F(RouteTableSlotsTest, ATakeoverThatAnotherOneOvertakesLeavesWhatWasKnown) {
  const std::string stranger = Neighbour("k");
  const Slot slots[] = {SlotOf(RefOf("k"))};
  const auto keys = [&] {
    std::vector<std::string> names;
    for (const KeyedRoute& keyed : table_.Export((slots[0] & 0xff), [](Slot) { return true; })) {
      names.push_back(keyed.key);
    }
    return names;
  };
  for (const bool fence : {true, false}) {
    Serve("k", 1);
    Version version = 0;
    ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &version), kItemOk);
    table_.Lose(slots);
    table_.BeginTakeover(slots, 7);
    table_.Import(RefOf(stranger), RouteOf(1, {Remote(2)}), false);
    EXPECT_EQ(keys(), std::vector<std::string>{stranger});
    if (!fence) table_.AbandonTakeover(slots);
    const Fenced fenced = table_.Fence(slots, 8);
    ASSERT_EQ(fenced.served.size(), 1u);
    EXPECT_EQ(fenced.served[0].upto, version);
    EXPECT_EQ(fenced.served[0].passed_on, false);
    EXPECT_EQ(fenced.served[0].unsure, true);  // Whoever was asked may have had more.
    EXPECT_EQ(keys(), std::vector<std::string>{"k"});
    EXPECT_EQ(table_.route_count(), 1u);
    table_.EndTakeover(slots, 7);
    EXPECT_FALSE(table_.Serves(slots[0]));
    table_.BeginTakeover(slots, 9);  // And what came of it is gone when one is done.
    table_.EndTakeover(slots, 9);
    EXPECT_EQ(table_.route_count(), 0u);
  }
}

// While this node was out of reach another one served the slot: what it gave out is newer than all
// that this one knows of it, however new the slots are that this one got since.
TEST_F(RouteTableSlotsTest, ATruthIsAsOldAsWhatItsServerHasGivenInThatSlot) {
  Serve("k", 3);
  Version version = 0;
  ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &version), kItemOk);
  Superseded ignored;
  ASSERT_EQ(table_.Remove(RefOf("k"), &ignored), kItemOk);  // Covered all the same.
  Serve("later", 9);
  ASSERT_EQ(Publish("later", At({Remote(1)})), kItemOk);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  const Fenced fenced = table_.Fence(slots);
  ASSERT_EQ(fenced.served.size(), 1u);
  EXPECT_EQ(fenced.served[0].upto, version);
  EXPECT_LT(fenced.served[0].upto, Version{9} << kTermBits);
  Serve("silent", 10);  // Nothing was given out.
  const Slot silent[] = {SlotOf(RefOf("silent"))};
  EXPECT_EQ(table_.Fence(silent).served[0].upto, Version{10} << kTermBits);
}

// A put in a slot says nothing of the time when the other slots came here.
TEST_F(RouteTableSlotsTest, VersionsAreThoseOfTheTermOfTheirSlot) {
  Serve("k", 3);
  Serve("later", 9);
  Version version = 0;
  ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &version), kItemOk);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  const Fenced fenced = table_.Fence(slots);
  EXPECT_EQ(fenced.served[0].upto, version);
  EXPECT_LT(version, Version{4} << kTermBits);
}

TEST_F(RouteTableSlotsTest, VersionsAreAboveAllThatWasKnownOfTheirSlot) {
  const std::string neighbour = Neighbour("k");
  const Slot slots[] = {SlotOf(RefOf("k"))};
  const Version newer = (Version{9} << kTermBits) + 5;
  table_.BeginTakeover(slots, 2);
  table_.Import(RefOf("k"), RouteOf(newer, {Remote(1)}), false);
  table_.EndTakeover(slots, 2);
  Version version = 0;
  ASSERT_EQ(Publish(neighbour, At({Remote(1)}), nullptr, &version), kItemOk);
  EXPECT_GT(version, newer);
  EXPECT_GE(table_.Fence(slots).served[0].upto, version);
  // Of keys that are gone the truth that was believed tells no more than its age.
  std::vector<Version> known(routing::Slots().count());
  known[slots[0]] = version + 100;
  table_.BeginTakeover(slots, 2);
  table_.EndTakeover(slots, 2, {}, known);
  ASSERT_EQ(Publish(neighbour, At({Remote(1)}), nullptr, &version), kItemOk);
  EXPECT_GT(version, known[slots[0]]);
}

TEST_F(RouteTableSlotsTest, ANodeThatWasAwayIsNotSureOfItsTruths) {
  Serve("k", 3);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.Lose(slots);
  EXPECT_FALSE(table_.Fence(slots).served[0].unsure);
  table_.Lose(slots, true);
  EXPECT_TRUE(table_.Fence(slots).served[0].unsure);
  Serve("k", 4);
  EXPECT_FALSE(table_.Fence(slots).served[0].unsure);
  Serve("k", 5);
  table_.Lose(slots, true);
  EXPECT_TRUE(table_.Fence(slots).served[0].unsure);
}

TEST_F(RouteTableSlotsTest, SlotsThatAreKeptFromALateAskerKeepTheirBytesAtHand) {
  const ExtentPin own = Live(extents_, "k", 10, 5);
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.BeginTakeover(slots, 7);
  table_.Import(RefOf("k"), RouteOf(5, {own->place()}), false);
  EXPECT_EQ(table_.Fence(slots, 6).kept, (std::vector<Slot>{slots[0]}));
  table_.EndTakeover(slots, 7);
  ExtentPin local;
  EXPECT_EQ(Look("k", nullptr, &local), kItemOk);
  EXPECT_TRUE(local);
}

TEST_F(RouteTableSlotsTest, AChangeAskedForBeforeTheSlotCameHereIsSentBack) {
  Serve("k", 5);
  Publication late = At({Remote(1)});
  late.revision = 4;
  EXPECT_EQ(Publish("k", late), kItemWrongAuthority);
  ASSERT_EQ(Publish("k", At({Remote(1)})), kItemOk);
  Superseded superseded;
  EXPECT_EQ(table_.Remove(RefOf("k"), &superseded, 4), kItemWrongAuthority);
  EXPECT_EQ(table_.Remove(RefOf("k"), &superseded, 5), kItemOk);
}

TEST_F(RouteTableSlotsTest, DropsMirrorsOfSlotsThatItIsNoRankOfAnyMore) {
  std::vector<bool> foreign(routing::Slots().count(), true);
  foreign[SlotOf(RefOf("kept"))] = false;
  table_.Import(RefOf("mirror"), RouteOf(5, {Remote(1)}), true);
  table_.Import(RefOf("kept"), RouteOf(5, {Remote(1)}), true);
  for (const char* key : {"served", "former"}) {
    Serve(key);
    ASSERT_EQ(Publish(key, At({Remote(1)})), kItemOk);
  }
  const Slot slots[] = {SlotOf(RefOf("former"))};
  table_.Lose(slots);
  table_.DropMirrors(foreign, 1'000'000, 7);
  EXPECT_EQ(table_.route_count(), 3u);  // Nobody has asked for the former one yet.
  EXPECT_EQ(table_.Fence(slots, kNewest, 1'000'000).served.size(), 1u);
  table_.DropMirrors(foreign, 1'030'000, 7);
  EXPECT_EQ(table_.route_count(), 3u);  // Whoever asked may still be at it.
  table_.DropMirrors(foreign, 1'100'000, 7);
  EXPECT_EQ(table_.route_count(), 2u);
  EXPECT_EQ(Look("served"), kItemOk);
  EXPECT_TRUE(table_.Fence(slots).served.empty()) << "what was dropped is no truth any more";
}

TEST_F(RouteTableSlotsTest, TakesNoMirrorThatComesAfterItStoppedToBeARank) {
  std::vector<bool> foreign(table_.slots().count(), true);
  foreign[SlotOf(RefOf("kept"))] = false;
  table_.DropMirrors(foreign, 1, 7);
  table_.Import(RefOf("late"), RouteOf(5, {Remote(1)}), true, 6);
  table_.Import(RefOf("late"), RouteOf(5, {Remote(1)}), true, 7);
  EXPECT_EQ(table_.route_count(), 0u);
  table_.Import(RefOf("kept"), RouteOf(5, {Remote(1)}), true, 6);
  table_.Import(RefOf("newer"), RouteOf(5, {Remote(1)}), true, 8);  // Our own view is late.
  EXPECT_EQ(table_.route_count(), 2u);
}

}  // namespace
}  // namespace mooncake::node

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "unit/node/route_tables.h"

namespace mooncake::node {
namespace {

// Of two keys whose hashes differ only in a bit that makes slots of a large cluster.
TEST_F(RouteTableTest, EverySlotOfALargeClusterHasAStateOfItsOwn) {
  for (uint32_t bits : {16u, 17u, 21u}) {
    RouteTable table(extents_, routing::Slots(bits));
    ASSERT_EQ(table.slots().count(), 1u << bits);
    std::vector<Slot> odd;
    std::vector<bool> foreign(table.slots().count());
    for (Slot slot = 1; slot < table.slots().count(); slot += 2) odd.push_back(slot);
    table.BeginTakeover(odd, 1);
    table.EndTakeover(odd, 1);
    for (Slot slot = 0; slot < table.slots().count(); ++slot) {
      ASSERT_EQ(table.Serves(slot), slot % 2 == 1) << slot << " of 2^" << bits;
    }
    const uint64_t hash = 0x5a3c'9000'0000'0000 | uint64_t{1} << (64 - bits);
    const KeyRef served{hash, 0, "k"};
    const KeyRef other{hash ^ uint64_t{1} << (64 - bits), 0, "k"};
    EXPECT_EQ(table.SlotOf(served), hash >> (64 - bits));
    Version version = 0;
    Superseded superseded;
    EXPECT_EQ(table.Publish(served, At({Remote(1)}), &version, &superseded), kItemOk);
    EXPECT_EQ(table.Publish(other, At({Remote(1)}), &version, &superseded), kItemWrongAuthority);
    table.Import(other, RouteOf(1, {Remote(2)}), true);
    EXPECT_EQ(table.route_count(), 2u);
    foreign[table.SlotOf(other)] = true;
    table.DropMirrors(foreign, 0, 1);
    EXPECT_EQ(table.route_count(), 1u);
    EXPECT_EQ(table.Lookup(served, nullptr, nullptr), kItemOk);
    size_t exported = 0;
    for (size_t shard = 0; shard < RouteTable::kShards; ++shard) {
      exported +=
          table.Export(shard, [&](Slot slot) { return slot == hash >> (64 - bits); }).size();
    }
    EXPECT_EQ(exported, 1u);
    table.Lose(odd);
    for (Slot slot : odd) ASSERT_FALSE(table.Serves(slot)) << slot << " of 2^" << bits;
  }
}

TEST_F(RouteTableTest, AnswersOnlyForSlotsThatItServes) {
  const Slot slots[] = {SlotOf(RefOf("k"))};
  EXPECT_EQ(Look("k"), kItemWrongAuthority);
  EXPECT_EQ(Publish("k", At({Remote(1)})), kItemWrongAuthority);
  table_.BeginTakeover(slots);
  EXPECT_EQ(Look("k"), kItemRetryLater);
  EXPECT_EQ(Publish("k", At({Remote(1)})), kItemRetryLater);
  table_.EndTakeover(slots, 1);
  EXPECT_TRUE(table_.Serves(slots[0]));
  EXPECT_EQ(Look("k"), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(Publish("k", At({Remote(1)})), kItemOk);
  EXPECT_EQ(Look("k"), kItemOk);
  table_.Lose(slots);
  EXPECT_EQ(Look("k"), kItemWrongAuthority);
}

TEST_F(RouteTableTest, AnOverwriteSupersedesAllReplicas) {
  Serve("k");
  ExtentPin local = Live(extents_, "k", 10);
  Publication first = At({Remote(1)});
  first.local = local;
  ASSERT_EQ(Publish("k", first), kItemOk);
  Superseded superseded;
  ASSERT_EQ(Publish("k", At({Remote(2)}), &superseded), kItemOk);
  EXPECT_EQ(superseded.local.get(), local.get());
  EXPECT_EQ(superseded.remote, (std::vector<Place>{Remote(1)}));
  EXPECT_FALSE(superseded.is_the_new_one);
}

TEST_F(RouteTableTest, APublicationThatComesTwiceSupersedesNothingInUse) {
  Serve("k");
  Publication publication = At({Remote(1), Remote(2)});
  publication.local = Live(extents_, "k", 10);
  ASSERT_EQ(Publish("k", publication), kItemOk);
  Superseded superseded;
  ASSERT_EQ(Publish("k", publication, &superseded), kItemOk);
  EXPECT_FALSE(superseded.local);
  EXPECT_TRUE(superseded.remote.empty());
  EXPECT_EQ(Look("k"), kItemOk);
}

TEST_F(RouteTableTest, IfAbsentGivesBackTheNewReplicasAndKeepsTheOld) {
  Serve("k");
  ASSERT_EQ(Publish("k", At({Remote(1)})), kItemOk);
  Publication second = At({Remote(2)});
  second.if_absent = true;
  second.local = Live(extents_, "k", 10);
  Superseded superseded;
  Version version = 0;
  ASSERT_EQ(Publish("k", second, &superseded, &version), kItemOk);
  EXPECT_TRUE(superseded.is_the_new_one);
  EXPECT_EQ(superseded.remote, (std::vector<Place>{Remote(2)}));
  EXPECT_EQ(superseded.local.get(), second.local.get());
  Route route;
  ASSERT_EQ(Look("k", &route), kItemOk);
  EXPECT_EQ(route.replicas, (std::vector<Place>{Remote(1)}));
  EXPECT_EQ(route.version, version);
}

TEST_F(RouteTableTest, ExpectedVersionsDecideRaces) {
  Serve("k");
  Version version = 0;
  Publication publication = At({Remote(1)});
  publication.expected = 0;  // Only if there is none.
  ASSERT_EQ(Publish("k", publication, nullptr, &version), kItemOk);
  EXPECT_EQ(Publish("k", publication), CodeOf(ErrorCode::kConflict));
  publication.expected = version;
  EXPECT_EQ(Publish("k", publication), kItemOk);
  EXPECT_EQ(Publish("k", publication), CodeOf(ErrorCode::kConflict));
}

TEST_F(RouteTableTest, VersionsGrowAndStartAboveTheirTerm) {
  Serve("k", 100);
  Version last = 0;
  for (int i = 0; i < 10; ++i) {
    Version version = 0;
    ASSERT_EQ(Publish("k", At({Remote(1, i)}), nullptr, &version), kItemOk);
    EXPECT_GT(version, last);
    EXPECT_GT(version, Version{100} << kTermBits);
    last = version;
  }
  Serve("other", 50);  // An older term does not take versions back.
  ASSERT_EQ(Publish("k", At({Remote(1)}), nullptr, &last), kItemOk);
  EXPECT_GT(last, Version{100} << kTermBits);
}

TEST_F(RouteTableTest, RemoveGivesEverythingBackOnce) {
  Serve("k");
  ASSERT_EQ(Publish("k", At({Remote(1), Remote(2)})), kItemOk);
  Superseded superseded;
  EXPECT_EQ(table_.Remove(RefOf("k"), &superseded), kItemOk);
  EXPECT_EQ(superseded.remote.size(), 2u);
  EXPECT_EQ(table_.Remove(RefOf("k"), &superseded), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(table_.route_count(), 0u);
}

TEST_F(RouteTableTest, LookupNamesTheLocalReplicaFirst) {
  Serve("k");
  Publication publication = At({Remote(1)});
  publication.local = Live(extents_, "k", 10);
  ASSERT_EQ(Publish("k", publication), kItemOk);
  Route route;
  ExtentPin local;
  ASSERT_EQ(Look("k", &route, &local), kItemOk);
  ASSERT_EQ(route.replicas.size(), 2u);
  EXPECT_EQ(route.replicas[0], publication.local->place());
  EXPECT_EQ(local.get(), publication.local.get());
}

TEST_F(RouteTableTest, CheckDropsOneReplicaAndTheRouteWithTheLast) {
  Serve("k");
  ASSERT_EQ(Publish("k", At({Remote(1), Remote(2)})), kItemOk);
  Version version = 0;
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(3), true, &version), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(1, 9), true, &version), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(1), false, &version), kItemOk);
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(1), true, &version), kItemOk);
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(1), true, &version), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(Look("k"), kItemOk);
  EXPECT_EQ(table_.Check(RefOf("k"), Remote(2), true, &version), kItemOk);
  EXPECT_EQ(Look("k"), CodeOf(ErrorCode::kNotFound));
}

TEST_F(RouteTableTest, RemoveScopeLeavesOtherScopesAndUnservedSlotsAlone) {
  for (const char* key : {"a", "b", "c"}) {
    const Slot slots[] = {SlotOf(RefOf(key, 1)), SlotOf(RefOf(key, 2))};
    table_.BeginTakeover(slots);
    table_.EndTakeover(slots, 1);
    for (ScopeIndex scope : {1u, 2u}) {
      Version version = 0;
      Superseded superseded;
      ASSERT_EQ(table_.Publish(RefOf(key, scope), At({Remote(1)}), &version, &superseded), kItemOk);
    }
  }
  const Slot fenced[] = {SlotOf(RefOf("c", 1))};
  table_.Fence(fenced);
  std::vector<std::string> removed;
  EXPECT_EQ(table_.RemoveScope(1,
                               [&](const KeyRef& ref, Superseded superseded) {
                                 removed.emplace_back(ref.key);
                                 EXPECT_EQ(superseded.remote.size(), 1u);
                               }),
            2u);
  std::sort(removed.begin(), removed.end());
  EXPECT_EQ(removed, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(table_.Lookup(RefOf("a", 2), nullptr, nullptr), kItemOk);
  EXPECT_EQ(table_.route_count(), 4u);
}

TEST_F(RouteTableTest, ImportKeepsTheNewestAndMergesEqualVersions) {
  const Slot slots[] = {SlotOf(RefOf("k"))};
  table_.BeginTakeover(slots);
  table_.Import(RefOf("k"), RouteOf(5, {Remote(1)}), false);
  table_.Import(RefOf("k"), RouteOf(4, {Remote(2)}), false);
  table_.Import(RefOf("k"), RouteOf(5, {Remote(3), Remote(1)}), false);
  table_.EndTakeover(slots, 1);
  Route route;
  ASSERT_EQ(Look("k", &route), kItemOk);
  EXPECT_EQ(route.version, 5u);
  EXPECT_EQ(route.replicas, (std::vector<Place>{Remote(1), Remote(3)}));
  table_.Import(RefOf("k"), RouteOf(9, {Remote(4)}), false);  // Served: not any more.
  ASSERT_EQ(Look("k", &route), kItemOk);
  EXPECT_EQ(route.version, 5u);
}

TEST_F(RouteTableTest, ImportAdoptsOurOwnExtentOnlyWhileItExists) {
  ExtentPin mine = Live(extents_, "k", 10);
  const Slot slots[] = {SlotOf(RefOf("k")), SlotOf(RefOf("gone"))};
  table_.BeginTakeover(slots);
  table_.Import(RefOf("k"), RouteOf(5, {mine->place()}), false);
  table_.Import(RefOf("gone"), RouteOf(5, {Place{kSelf, 0, 0, 999}}), false);
  table_.EndTakeover(slots, 1);
  ExtentPin local;
  ASSERT_EQ(Look("k", nullptr, &local), kItemOk);
  EXPECT_EQ(local.get(), mine.get());
  EXPECT_EQ(Look("gone"), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(table_.route_count(), 1u);
}

TEST_F(RouteTableTest, MirrorsTouchNothingThatIsServed) {
  table_.Import(RefOf("k"), RouteOf(5, {Remote(1)}), true);
  EXPECT_EQ(table_.route_count(), 1u);
  EXPECT_EQ(Look("k"), kItemWrongAuthority);
  table_.ForgetMirror(RefOf("k"), 4);
  EXPECT_EQ(table_.route_count(), 1u);
  table_.ForgetMirror(RefOf("k"), 5);
  EXPECT_EQ(table_.route_count(), 0u);
  Serve("k");
  table_.Import(RefOf("k"), RouteOf(5, {Remote(1)}), true);
  EXPECT_EQ(Look("k"), CodeOf(ErrorCode::kNotFound));
  ASSERT_EQ(Publish("k", At({Remote(1)})), kItemOk);
  table_.ForgetMirror(RefOf("k"), ~uint64_t{0});
  EXPECT_EQ(Look("k"), kItemOk);
}

TEST_F(RouteTableTest, SweepDropsTheReplicasOfOwnersThatAreGone) {
  for (const char* key : {"one", "both", "other"}) Serve(key);
  ASSERT_EQ(Publish("one", At({Remote(1)})), kItemOk);
  ASSERT_EQ(Publish("both", At({Remote(1), Remote(2)})), kItemOk);
  ASSERT_EQ(Publish("other", At({Remote(2)})), kItemOk);
  EXPECT_EQ(table_.SweepOwners([](const Place& place) { return place.owner == 1; }), 2u);
  EXPECT_EQ(Look("one"), CodeOf(ErrorCode::kNotFound));
  EXPECT_EQ(Look("both"), kItemOk);
  EXPECT_EQ(table_.route_count(), 2u);
}

TEST_F(RouteTableTest, ExportNamesKeysOfTheWantedSlotsOnly) {
  std::map<std::string, int> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string key = "k" + std::to_string(i);
    Serve(key);
    ASSERT_EQ(Publish(key, At({Remote(1)})), kItemOk);
  }
  const Slot wanted = SlotOf(RefOf("k7"));
  for (size_t shard = 0; shard < RouteTable::kShards; ++shard) {
    for (const KeyedRoute& keyed :
         table_.Export(shard, [&](Slot slot) { return slot == wanted; })) {
      ++seen[keyed.key];
      EXPECT_EQ(keyed.ref.key, keyed.key);
    }
  }
  EXPECT_EQ(seen, (std::map<std::string, int>{{"k7", 1}}));
}

TEST_F(RouteTableTest, AgreesWithAMapOverRandomCalls) {
  std::mt19937_64 random(3);
  std::map<std::string, std::pair<Version, std::vector<Place>>> model;
  for (int i = 0; i < 40; ++i) Serve("k" + std::to_string(i));
  for (int step = 0; step < 20'000; ++step) {
    const std::string key = "k" + std::to_string(random() % 40);
    Superseded superseded;
    Version version = 0;
    const bool present = model.contains(key);
    switch (random() % 4) {
      case 0:
      case 1: {
        Publication publication = At({Remote(1 + random() % 3, step)});
        publication.if_absent = random() % 2 == 0;
        ASSERT_EQ(Publish(key, publication, &superseded, &version), kItemOk);
        EXPECT_EQ(superseded.is_the_new_one, publication.if_absent && present);
        if (superseded.is_the_new_one) break;
        EXPECT_EQ(superseded.remote, present ? model[key].second : std::vector<Place>{});
        EXPECT_GT(version, present ? model[key].first : 0);
        model[key] = {version, publication.remote};
        break;
      }
      case 2:
        ASSERT_EQ(table_.Remove(RefOf(key), &superseded),
                  present ? kItemOk : CodeOf(ErrorCode::kNotFound));
        model.erase(key);
        break;
      default: {
        Route route;
        ASSERT_EQ(Look(key, &route), present ? kItemOk : CodeOf(ErrorCode::kNotFound));
        if (present) {
          EXPECT_EQ(route.replicas, model[key].second);
        }
        break;
      }
    }
  }
  EXPECT_EQ(table_.route_count(), model.size());
}

TEST_F(RouteTableTest, PublishersRemoversAndReadersOfOneKeyLoseNoExtent) {
  Serve("k");
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        ExtentPin pin = Reserve(extents_, "k", 100);
        if (!pin) continue;
        Superseded superseded;
        Version version = 0;
        ASSERT_EQ(Publish("k", {.size = 100, .local = pin}, &superseded, &version), kItemOk);
        extents_.Commit(*pin, version);
        if (superseded.local) extents_.Retire(*superseded.local);
        ExtentPin read;
        if (Look("k", nullptr, &read) == kItemOk) {
          ASSERT_EQ(read->data().size(), 100u);
        }
        Superseded removed;
        if (i % 7 == 0 && table_.Remove(RefOf("k"), &removed) == kItemOk && removed.local) {
          extents_.Retire(*removed.local);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  Superseded last;
  if (table_.Remove(RefOf("k"), &last) == kItemOk) extents_.Retire(*last.local);
  last = {};
  EXPECT_EQ(extents_.Usage().first, 0u);
}

}  // namespace
}  // namespace mooncake::node

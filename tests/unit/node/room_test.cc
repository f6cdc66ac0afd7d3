#include "node/room.h"

#include <gtest/gtest.h>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::kMiB;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr uint64_t kValue = 16 * kKiB;

std::vector<std::string> Keys(int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back("key-" + std::to_string(i));
  return keys;
}

size_t Present(TestNode& node, const std::vector<std::string>& keys) {
  size_t present = 0;
  for (const Result<Existence>& each : node.ExistAll(keys)) {
    present += each.ok() && *each == Existence::kPresent;
  }
  return present;
}

routing::ViewNode Peer(uint32_t instance, uint64_t capacity) {
  routing::ViewNode node;
  node.lease.instance = instance;
  node.lease.segments = {{"s", capacity, 0, NodeState::kActive},
                         {"left", capacity, 0, NodeState::kDraining}};
  return node;
}

TEST(RoomTable, ANodeThatHasSaidNothingIsEmptyUpToTheLowWatermark) {
  RoomTable rooms(80);
  const routing::ViewNode peer = Peer(7, kMiB);
  EXPECT_TRUE(rooms.Has(peer, kMiB / 2, 1));
  EXPECT_FALSE(rooms.Has(peer, kMiB / 10 * 9, 1));
}

TEST(RoomTable, WhatIsTakenIsGoneUntilTheNextReply) {
  RoomTable rooms(80);
  const routing::ViewNode peer = Peer(7, kMiB);
  rooms.Told(7, 64 * kKiB, 1);
  EXPECT_TRUE(rooms.Take(peer, 40 * kKiB, 2));
  EXPECT_FALSE(rooms.Take(peer, 40 * kKiB, 2));
  EXPECT_TRUE(rooms.Take(peer, 20 * kKiB, 2));
  rooms.Told(7, 64 * kKiB, 3);
  EXPECT_TRUE(rooms.Take(peer, 40 * kKiB, 3));
}

TEST(RoomTable, AnOldReplyCountsNoMore) {
  RoomTable rooms(80);
  const routing::ViewNode peer = Peer(7, kMiB);
  rooms.Told(7, 0, 1);
  EXPECT_FALSE(rooms.Has(peer, 1, RoomTable::kRecentMs));
  EXPECT_TRUE(rooms.Has(peer, 1, RoomTable::kRecentMs + 1));
  EXPECT_TRUE(rooms.Take(peer, kMiB / 2, RoomTable::kRecentMs + 1));
  EXPECT_FALSE(rooms.Has(peer, kMiB / 2, RoomTable::kRecentMs + 2));
}

TEST(RoomTable, ANodeHasNoMoreRoomThanItsSegments) {
  RoomTable rooms(80);
  rooms.Told(7, UINT64_MAX, 1);
  EXPECT_FALSE(rooms.Has(Peer(7, kMiB), kMiB, 2));
  EXPECT_FALSE(rooms.Has(Peer(8, 0), 1, 2));
}

TEST(RoomTable, NodesThatCannotBeToldApartAreNotRemembered) {
  RoomTable rooms(80);
  rooms.Told(0, 0, 1);
  EXPECT_TRUE(rooms.Has(Peer(0, kMiB), 1, 2));
}

TEST(RoomTable, WhoDidNotAnswerGetsNothingForItsRoomAlone) {
  RoomTable rooms(80);
  const routing::ViewNode peer = Peer(7, kMiB);
  rooms.Failed(peer, 1);
  EXPECT_FALSE(rooms.Has(peer, 1, RoomTable::kForgetMs));
  EXPECT_TRUE(rooms.Take(peer, 1, 2));  // What is its own is not kept from it.
  EXPECT_TRUE(rooms.Has(peer, 1, RoomTable::kForgetMs + 1));
  rooms.Failed(peer, RoomTable::kForgetMs + 2);
  rooms.Told(7, 64 * kKiB, RoomTable::kForgetMs + 3);
  EXPECT_TRUE(rooms.Has(peer, 1, RoomTable::kForgetMs + 3));
}

TEST(RoomTable, AValueIsInOneSegment) {
  RoomTable rooms(80);
  routing::ViewNode peer = Peer(7, kMiB);
  peer.lease.segments.push_back({"t", kMiB, 0, NodeState::kActive});
  EXPECT_TRUE(rooms.Has(peer, kMiB, 1));
  EXPECT_FALSE(rooms.Has(peer, kMiB + 1, 1));
  EXPECT_FALSE(rooms.Take(peer, kMiB + 1, 1));
}

TEST(RoomPlan, SuspectsAndValuesLargerThanEachSegmentHaveNone) {
  Simulated(10, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", kMiB);
    TestNode& b = cluster.Start("b", 8 * kMiB);
    ASSERT_TRUE(a.node().ExpandMemory(kMiB).ok());
    const ViewPtr view = a.core().view();
    RoomPlan plan(a.core());
    EXPECT_TRUE(plan.Has(*view, routing::kNoNode, kMiB / 2));
    EXPECT_FALSE(plan.Has(*view, routing::kNoNode, kMiB + kMiB / 4));
    const routing::NodeIndex other = view->FindName("b");
    EXPECT_TRUE(plan.Has(*view, other, kMiB));
    a.core().membership.Suspect(b.core().membership.self());
    EXPECT_FALSE(plan.Has(*view, other, kMiB));
  });
}

// The small node can hold 64 values; without spill the half of the keys that are its own would be
// more.
void NothingIsEvictedWhileTheOtherHasRoom(const ReplicateConfig* policy, bool batch) {
  Simulated(3, [&](TestCluster& cluster) {
    TestNode& small = cluster.Start("small", kMiB);
    TestNode& large = cluster.Start("large", 8 * kMiB);
    const auto keys = Keys(200);
    if (batch) {
      for (const Status& status : small.PutAll(keys, kValue, policy)) EXPECT_TRUE(status.ok());
    } else {
      for (const std::string& key : keys) {
        EXPECT_TRUE(small.Put(key, std::string(kValue, 'v'), policy).ok());
      }
    }
    EXPECT_EQ(Present(large, keys), keys.size());
    EXPECT_GT(small.UsedBytes(), kMiB / 2);
  });
}

TEST(Spill, ValuesOfOwnKeysGoWhereThereIsRoom) {
  NothingIsEvictedWhileTheOtherHasRoom(nullptr, false);
}

TEST(Spill, ThoseOfABatchToo) { NothingIsEvictedWhileTheOtherHasRoom(nullptr, true); }

TEST(Spill, PreferLocalIsForAsLongAsThisNodeHasRoom) {
  const ReplicateConfig policy{.prefer_local = true};
  NothingIsEvictedWhileTheOtherHasRoom(&policy, false);
  NothingIsEvictedWhileTheOtherHasRoom(&policy, true);
}

// What a full owner has said of itself is known to the writer, in batches and one by one.
TEST(Spill, AWriterWithoutStorageFindsTheOneWithRoom) {
  for (const size_t batch : {size_t{1}, size_t{10}, size_t{200}}) {
    Simulated(4, [&](TestCluster& cluster) {
      TestNode& small = cluster.Start("small", kMiB);
      cluster.Start("large", 8 * kMiB);
      TestNode& writer = cluster.Start("writer", 0);
      const auto keys = Keys(200);
      for (size_t i = 0; i < keys.size(); i += batch) {
        const std::span<const std::string> some(&keys[i], std::min(batch, keys.size() - i));
        for (const Status& status : writer.PutAll(some, kValue)) EXPECT_TRUE(status.ok());
      }
      EXPECT_EQ(Present(writer, keys), keys.size()) << "batches of " << batch;
      EXPECT_GT(small.UsedBytes(), kMiB / 2);
    });
  }
}

TEST(Spill, WhereNobodyHasRoomAPutTakesOneRoundTripAsEver) {
  Simulated(5, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", kMiB);
    TestNode& b = cluster.Start("b", kMiB);
    TestNode& writer = cluster.Start("writer", 0);
    const auto filling = Keys(400);
    for (const std::string& key : filling) {
      ASSERT_TRUE(writer.Put(key, std::string(kValue, 'v')).ok());
    }
    EXPECT_LT(Present(writer, filling), filling.size());
    EXPECT_GT(std::min(a.UsedBytes(), b.UsedBytes()), kMiB / 2);
    const auto keys = TestCluster::KeysAt(writer, "a:1", 20);
    writer.transport.Take();
    for (const std::string& key : keys) {
      ASSERT_TRUE(writer.Put(key, std::string(kValue, 'w')).ok());
    }
    EXPECT_EQ(writer.transport.counts().rounds, keys.size());
  });
}

// It is to be filled in time, not to serve all that is written meanwhile.
TEST(Spill, AnEmptyNodeAmongFullOnesGetsLessThanHalf) {
  Simulated(8, [](TestCluster& cluster) {
    for (const char* name : {"a", "b", "c"}) cluster.Start(name, kMiB);
    TestNode& writer = cluster.Start("writer", 0);
    for (const std::string& key : Keys(600)) {  // The smallest share fills its node, too.
      ASSERT_TRUE(writer.Put(key, std::string(kValue, 'v')).ok());
    }
    TestNode& empty = cluster.Start("d", 16 * kMiB);
    for (int i = 0; i < 400; ++i) {
      ASSERT_TRUE(writer.Put("new-" + std::to_string(i), std::string(kValue, 'w')).ok());
    }
    EXPECT_GT(empty.UsedBytes(), 120 * kValue);
    EXPECT_LT(empty.UsedBytes(), 200 * kValue);
  });
}

TEST(RoomTable, FewNodesWithRoomGetAShareOfWhatOthersHaveNoRoomFor) {
  Simulated(9, [](TestCluster& cluster) {
    TestNode& node = cluster.Start("a", 0);
    for (int i = 0; i < 4; ++i) cluster.Start("s" + std::to_string(i), kMiB);
    const ViewPtr view = node.core().view();
    uint64_t now_ms = 1;
    const std::vector<double> shares = {1, 1, 1, 0.25, 0};
    for (size_t full = 0; full <= 4; ++full) {
      RoomTable rooms(80);
      for (size_t i = 0; i < full; ++i) {
        const routing::NodeIndex index = view->FindName("s" + std::to_string(i));
        rooms.Told(view->node(index).lease.instance, 1000, now_ms);
      }
      EXPECT_DOUBLE_EQ(rooms.SpillShare(*view, "", routing::kNoNode, false, now_ms), shares[full]);
    }
  });
}

// They may have been emptied since.
TEST(RoomTable, FullNodesThatHaveSaidNothingForLongAreAskedAgain) {
  Simulated(11, [](TestCluster& cluster) {
    TestNode& node = cluster.Start("a", 0);
    for (int i = 0; i < 4; ++i) cluster.Start("s" + std::to_string(i), kMiB);
    const ViewPtr view = node.core().view();
    const auto share = [&](RoomTable& rooms, uint64_t now_ms) {
      return rooms.SpillShare(*view, "", routing::kNoNode, false, now_ms);
    };
    for (const bool failed : {false, true}) {
      RoomTable rooms(80);
      for (int i = 0; i < 4; ++i) {
        const routing::ViewNode& full = view->node(view->FindName("s" + std::to_string(i)));
        failed ? rooms.Failed(full, 1) : rooms.Told(full.lease.instance, 0, 1);
      }
      EXPECT_DOUBLE_EQ(share(rooms, 2), 0);
      EXPECT_DOUBLE_EQ(share(rooms, RoomTable::kForgetMs + 1), 1);
    }
  });
}

TEST(Spill, SecondCopiesGoWhereThereIsRoom) {
  Simulated(6, [](TestCluster& cluster) {
    TestNode& small = cluster.Start("small", kMiB);
    TestNode& x = cluster.Start("x", 8 * kMiB);
    TestNode& y = cluster.Start("y", 8 * kMiB);
    const ReplicateConfig policy{.replica_num = 2, .prefer_local = false};
    const auto keys = Keys(200);
    for (const std::string& key : keys) {
      ASSERT_TRUE(x.Put(key, std::string(kValue, 'v'), &policy).ok());
    }
    EXPECT_EQ(small.UsedBytes() + x.UsedBytes() + y.UsedBytes(), 2 * keys.size() * kValue);
  });
}

TEST(Spill, AnOwnerThatIsAskedForByNameMakesRoom) {
  Simulated(7, [](TestCluster& cluster) {
    TestNode& small = cluster.Start("small", kMiB);
    TestNode& large = cluster.Start("large", 8 * kMiB);
    const ReplicateConfig policy{.preferred_storage_owners = {"small"}, .prefer_local = false};
    const auto keys = Keys(100);
    for (const std::string& key : keys) {
      ASSERT_TRUE(large.Put(key, std::string(kValue, 'v'), &policy).ok());
    }
    EXPECT_EQ(large.UsedBytes(), 0u);
    EXPECT_GT(small.UsedBytes(), kMiB / 2);
    EXPECT_LT(Present(large, keys), keys.size());
  });
}

}  // namespace
}  // namespace mooncake::node

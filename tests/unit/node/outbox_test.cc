#include "node/outbox.h"

#include <gtest/gtest.h>

#include "support/test_cluster.h"
#include "unit/node/extents.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

struct TwoNodes {
  explicit TwoNodes(TestCluster& cluster)
      : runtime(cluster.runtime()), a(cluster.Start("a")), b(cluster.Start("b")) {}
  // The place of an extent of b's, as a names it.
  Place OnB(const ExtentPin& extent) {
    Place place = extent->place();
    place.owner = *a.core().names.IndexOf(b.name());
    return place;
  }
  Runtime& runtime;
  TestNode& a;
  TestNode& b;
};

TEST(Outbox, NoticesMakeExtentsLiveAndTakeThemBack) {
  Simulated(1, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    ExtentPin extent = Reserve(world.b.core().extents, "k", 100);
    world.a.core().outbox.Committed(world.OnB(extent), 77);
    ASSERT_TRUE(world.a.core().outbox.Flush(world.a.Deadline()));
    EXPECT_EQ(extent->state(), ExtentState::kLive);
    EXPECT_EQ(extent->version(), 77u);
    world.a.core().outbox.Retired(world.OnB(extent));
    ASSERT_TRUE(world.a.core().outbox.Flush(world.a.Deadline()));
    EXPECT_EQ(extent->state(), ExtentState::kRetired);
  });
}

TEST(Outbox, AFlushWaitsForWhatWasQueuedBeforeItOnly) {
  Simulated(8, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    cluster.network().SetFaults({.latency_ms_min = 20, .latency_ms_max = 20});
    ExtentPin extent = Reserve(world.b.core().extents, "k", 100);
    std::atomic<bool> stop = false;
    auto traffic = world.runtime.Spawn("traffic", [&] {
      while (!stop.load()) {
        world.a.core().outbox.Retired({world.OnB(extent).owner, 0, 0, 1});  // Of no extent.
        world.runtime.SleepMs(5);
      }
    });
    world.runtime.SleepMs(200);
    world.a.core().outbox.Retired(world.OnB(extent));
    const uint64_t start_ms = world.runtime.NowMs();
    EXPECT_TRUE(world.a.core().outbox.Flush(start_ms + 2'000));
    EXPECT_EQ(extent->state(), ExtentState::kRetired);
    EXPECT_LE(world.runtime.NowMs() - start_ms, 300u);
    stop.store(true);
    traffic->Join();
  });
}

TEST(Outbox, AnOwnerThatWasSilentForAWhileHearsWhatItMissed) {
  Simulated(7, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    const std::string key = TestCluster::KeyAt(world.a, "b:1");
    ASSERT_TRUE(world.b.Put(key, "v").ok());  // Named by a route: no orphan.
    Route route;
    ExtentPin extent;
    ASSERT_EQ(world.b.core().routes.Lookup(world.b.Ref(key), &route, &extent), kItemOk);
    const Place place = world.OnB(extent);
    cluster.network().Block(world.a.node().endpoint(), world.b.node().endpoint(), true);
    world.a.core().outbox.Retired(place);
    world.runtime.SleepMs(30'000);
    EXPECT_EQ(extent->state(), ExtentState::kLive);
    cluster.network().Block(world.a.node().endpoint(), world.b.node().endpoint(), false);
    world.runtime.SleepMs(6'000);
    EXPECT_EQ(extent->state(), ExtentState::kRetired);
  });
}

TEST(Outbox, NoticesOfAFormerIncarnationTouchNothing) {
  Simulated(2, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    ExtentPin extent = Live(world.b.core().extents, "k", 100);
    Place place = extent->place();
    place.owner = *world.a.core().names.IndexOf("b:0");
    world.a.core().outbox.Retired(place);
    ASSERT_TRUE(world.a.core().outbox.Flush(world.a.Deadline()));
    EXPECT_EQ(extent->state(), ExtentState::kLive);
  });
}

TEST(Outbox, ABurstTravelsInFewMessages) {
  Simulated(3, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    std::vector<ExtentPin> extents;
    for (int i = 0; i < 3000; ++i) extents.push_back(Live(world.b.core().extents, "k", 64));
    for (const ExtentPin& extent : extents) world.a.core().outbox.Retired(world.OnB(extent));
    ASSERT_TRUE(world.a.core().outbox.Flush(world.a.Deadline()));
    extents.clear();
    EXPECT_EQ(world.b.UsedBytes(), 0u);
  });
}

TEST(Outbox, StopSendsWhatIsQueuedAndEndsInTimeWithoutThePeer) {
  Simulated(4, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    ExtentPin extent = Live(world.b.core().extents, "k", 100);
    cluster.network().SetPaused(world.b.node().endpoint(), true);
    world.a.core().outbox.Retired(world.OnB(extent));
    const uint64_t start_ms = world.runtime.NowMs();
    world.a.Close();
    EXPECT_LE(world.runtime.NowMs() - start_ms, 10'000u);
  });
}

TEST(Outbox, MirrorsReachTheNextRankInTheirNewestForm) {
  Simulated(5, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    const auto keys = TestCluster::KeysAt(world.a, "a:1", 20);
    for (const std::string& key : keys) ASSERT_TRUE(world.a.Put(key, "v").ok());
    cluster.Settle();
    EXPECT_EQ(world.b.core().routes.route_count(), 20u);
    for (const std::string& key : keys) ASSERT_TRUE(world.a.Remove(key).ok());
    cluster.Settle();
    EXPECT_EQ(world.b.core().routes.route_count(), 0u);
  });
}

TEST(Outbox, MirrorsOfLongKeysAreCutToWhatAMessageTakes) {
  Simulated(8, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    const Route route{7, 1, 0, false, false, {Place{}}};
    uint64_t bytes = 0;
    uint64_t count = 0;
    for (int i = 0; bytes < kMessageSizeMax + kMessageSizeMax / 8; ++i) {
      const std::string key = std::string(60'000, 'k') + std::to_string(i);
      const KeyRef ref = world.a.Ref(key);
      const ViewPtr view = world.a.core().view();
      if (view->node(view->RanksOf(ref.hash)[0]).lease.id.ToString() != world.a.name()) continue;
      world.a.core().outbox.Mirror(ref, route);
      bytes += key.size();
      ++count;
    }
    EXPECT_TRUE(world.a.core().outbox.Flush(world.a.Deadline()));
    EXPECT_EQ(world.b.core().routes.route_count(), count);
  });
}

// A peer that is silent costs the others nothing, whoever of them is told first.
TEST(Outbox, ASilentPeerKeepsNobodyElseFromHearing) {
  Simulated(9, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    TestNode& c = cluster.Start("c");
    ExtentPin silent = Reserve(world.b.core().extents, "k", 100);
    ExtentPin heard = Reserve(c.core().extents, "k", 100);
    Place place = heard->place();
    place.owner = *world.a.core().names.IndexOf(c.name());
    cluster.network().SetPaused(world.b.node().endpoint(), true);
    world.a.core().outbox.Committed(world.OnB(silent), 77);
    world.runtime.SleepMs(100);  // Being sent.
    world.a.core().outbox.Committed(place, 78);
    world.runtime.SleepMs(100);
    EXPECT_EQ(silent->state(), ExtentState::kReserved);
    EXPECT_EQ(heard->state(), ExtentState::kLive);
    cluster.network().SetPaused(world.b.node().endpoint(), false);
  });
}

// The stall limit is longer than what a notice waits, so nobody suspects it meanwhile.
TEST(Outbox, ASilentPeerIsWaitedForOnce) {
  const auto body = [](TestCluster& cluster) {
    TwoNodes world(cluster);
    ExtentPin extent = Live(world.b.core().extents, "k", 100);
    cluster.network().SetPaused(world.b.node().endpoint(), true);
    // As many as take several messages.
    for (int i = 0; i < 20'000; ++i) world.a.core().outbox.Retired(world.OnB(extent));
    const uint64_t start_ms = world.runtime.NowMs();
    EXPECT_TRUE(world.a.core().outbox.Flush(start_ms + 60'000));
    EXPECT_LE(world.runtime.NowMs() - start_ms, 11'000u);
    cluster.network().SetPaused(world.b.node().endpoint(), false);
  };
  Simulated(10, body, 20'000);
}

TEST(Outbox, AnEvictedReplicaLeavesTheOthersInTheMirror) {
  Simulated(6, [](TestCluster& cluster) {
    TwoNodes world(cluster);
    const std::string key = TestCluster::KeyAt(world.a, "a:1");
    const ReplicateConfig two{.replica_num = 2};
    ASSERT_TRUE(world.a.Put(key, "v", &two).ok());
    bool would_block = false;
    ASSERT_GT(world.a.core().evictor.MakeRoom(1, {}, true, UINT64_MAX, &would_block), 0u);
    ASSERT_EQ(world.a.Find(key)->replicas.size(), 1u);
    cluster.Settle();
    EXPECT_EQ(world.b.core().routes.route_count(), 1u);
    EXPECT_EQ(world.a.Get(key).value_or(""), "v");
  });
}

}  // namespace
}  // namespace mooncake::node

// A node with several segments: all of them are used, and room is made where it helps.
#include <gtest/gtest.h>

#include "node/evictor.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::kMiB;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr uint64_t kValue = 16 * kKiB;

std::vector<std::string> Keys(const std::string& prefix, uint64_t count) {
  std::vector<std::string> keys;
  for (uint64_t i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
  return keys;
}

void PutAll(TestNode& node, const std::vector<std::string>& keys,
            const ReplicateConfig* policy = nullptr) {
  for (const std::string& key : keys) {
    EXPECT_TRUE(node.Put(key, std::string(kValue, 'v'), policy).ok()) << key;
  }
}

uint64_t Present(TestNode& node, const std::vector<std::string>& keys) {
  uint64_t present = 0;
  for (const Result<Existence>& each : node.ExistAll(keys)) {
    present += each.ok() && *each == Existence::kPresent;
  }
  return present;
}

std::vector<SegmentStats> Stats(TestNode& node) { return node.core().extents.Stats(); }

std::string Expand(TestNode& node, uint64_t bytes) {
  const auto added = node.node().ExpandMemory(bytes);
  EXPECT_TRUE(added.ok());
  return added.ok() ? added->name : "";
}

TEST(Segments, AreFilledAlikeAndNothingIsEvictedBelowTheWatermarkOfTheNode) {
  Simulated(1, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", kMiB);
    Expand(a, 3 * kMiB);
    const auto keys = Keys("k", 4 * kMiB / kValue * 8 / 10);
    for (const std::string& key : keys) {
      PutAll(a, {key});
      cluster.runtime().SleepMs(10);  // The evictor looks at it.
    }
    EXPECT_EQ(Present(a, keys), keys.size());
    for (const SegmentStats& segment : Stats(a)) {
      EXPECT_GT(segment.used_bytes, segment.capacity_bytes / 100 * 75) << segment.name;
    }
  });
}

TEST(Segments, AValueThatTheOneAskedForCannotHoldEvictsNothing) {
  Simulated(2, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", 4 * kMiB);
    const ReplicateConfig small{.preferred_segments = {Expand(a, kMiB)}};
    const auto keys = Keys("k", 50);
    PutAll(a, keys, &small);
    EXPECT_EQ(a.Put("large", std::string(2 * kMiB, 'l'), &small).code(), ErrorCode::kNoSpace);
    EXPECT_EQ(Present(a, keys), keys.size());
  });
}

TEST(Segments, RoomForALargeValueIsMadeWhereItFits) {
  Simulated(3, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", 4 * kMiB);
    const auto keys = Keys("k", 58);  // 90 % of the small one, which is the fuller one.
    const ReplicateConfig small{.preferred_segments = {Expand(a, kMiB)}};
    PutAll(a, keys, &small);
    const ReplicateConfig large{.preferred_segments = {"a-segment"}};
    PutAll(a, Keys("l", 120), &large);
    EXPECT_TRUE(a.Put("large", std::string(3 * kMiB, 'l')).ok());
    EXPECT_EQ(Present(a, keys), keys.size());
  });
}

TEST(Segments, WhereAllOfTheFullestIsBeingReadOthersMakeRoom) {
  Simulated(4, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", kMiB);
    const std::string second = Expand(a, kMiB);
    PutAll(a, Keys("k", 128));
    std::vector<ExtentPin> readers;
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      for (ExtentPin& extent : a.core().extents.ShardExtents(shard)) {
        if (extent->segment_index() == 0) readers.push_back(std::move(extent));
      }
    }
    EXPECT_TRUE(a.Put("more", std::string(kValue, 'v')).ok());
    readers.clear();
  });
}

// An authority that is silent costs those who need room its time once, not each of them.
TEST(Segments, ASilentAuthorityIsNotWaitedForByEveryEviction) {
  constexpr uint64_t kStallMs = 60'000;  // Nobody is suspected.
  const auto body = [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a", kMiB);
    NodeConfig authority = TestCluster::Config("b", 0);
    authority.labels["route"] = "true";
    authority.options.stall_timeout_ms = kStallMs;
    TestNode& b = cluster.Start(authority);
    const ReplicateConfig local{.prefer_local = true};
    PutAll(a, TestCluster::KeysAt(a, "b:1", 30), &local);
    const auto own = TestCluster::KeysAt(a, "a:1", 200);
    cluster.network().Block(b.node().endpoint(), a.node().endpoint(), true);
    const uint64_t start_ms = cluster.runtime().NowMs();
    PutAll(a, own);
    EXPECT_LT(cluster.runtime().NowMs() - start_ms, 8'000u);
    cluster.network().Block(b.node().endpoint(), a.node().endpoint(), false);
  };
  Simulated(5, body, kStallMs);
}

}  // namespace
}  // namespace mooncake::node

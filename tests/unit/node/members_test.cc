// What a node says of the others' segments.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr uint64_t kKiB = 1024;

std::map<std::string, uint64_t> UsedBytes(TestNode& node) {
  std::map<std::string, uint64_t> used;
  for (const LeaseRecord& lease : node.node().ReadMembers()) {
    for (const SegmentRecord& segment : lease.segments) {
      used[lease.id.ToString()] += segment.used_bytes;
    }
  }
  return used;
}

struct AnOwnerAndItsObserver {
  explicit AnOwnerAndItsObserver(TestCluster& cluster)
      : owner(cluster.Start("owner")), observer(cluster.Start("observer")) {
    const auto keys = TestCluster::KeysAt(observer, "owner:1", 20);
    for (const Status& status : observer.PutAll(keys, kKiB)) EXPECT_TRUE(status.ok());
  }
  TestNode& owner;
  TestNode& observer;
};

TEST(Members, UsageIsAsOfTheLastHeartbeatThoughNoViewFollowsIt) {
  Simulated(1, [](TestCluster& cluster) {
    AnOwnerAndItsObserver nodes(cluster);
    const uint64_t revision = nodes.observer.core().view()->revision();
    cluster.runtime().SleepMs(TestCluster::Config("x").membership.heartbeat_interval_ms + 1'000);
    EXPECT_EQ(UsedBytes(nodes.observer),
              (std::map<std::string, uint64_t>{{"observer:1", 0}, {"owner:1", 20 * kKiB}}));
    EXPECT_EQ(nodes.observer.core().view()->revision(), revision);
  });
}

TEST(Members, AreThoseOfTheViewWhileTheServiceIsAway) {
  Simulated(2, [](TestCluster& cluster) {
    AnOwnerAndItsObserver nodes(cluster);
    cluster.runtime().SleepMs(TestCluster::Config("x").membership.heartbeat_interval_ms + 1'000);
    for (const MetadataFault fault : {MetadataFault::kDown, MetadataFault::kHung}) {
      nodes.observer.metadata.SetFault(fault);
      const uint64_t asked_ms = cluster.runtime().NowMs();
      EXPECT_EQ(UsedBytes(nodes.observer),
                (std::map<std::string, uint64_t>{{"observer:1", 0}, {"owner:1", 0}}));
      EXPECT_LE(cluster.runtime().NowMs(), asked_ms + 3'000);  // Its timeout.
    }
    nodes.observer.metadata.SetFault(MetadataFault::kNone);
    EXPECT_EQ(UsedBytes(nodes.observer)["owner:1"], 20 * kKiB);
  });
}

}  // namespace
}  // namespace mooncake::node

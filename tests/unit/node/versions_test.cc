// Nodes of one major version and different minors in one cluster, as during an upgrade.
#include <gtest/gtest.h>

#include "node/migration_queue.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

TestNode& StartAs(TestCluster& cluster, const std::string& name, uint32_t minor) {
  NodeConfig config = TestCluster::Config(name);
  config.protocol_minor = minor;
  return cluster.Start(config);
}

TEST(Versions, NodesOfAllMinorsServeEachOther) {
  Simulated(1, [](TestCluster& cluster) {
    TestNode* nodes[] = {&StartAs(cluster, "older", 0), &StartAs(cluster, "same", kProtocolMinor),
                         &StartAs(cluster, "newer", 9)};
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    for (TestNode* writer : nodes) {
      for (TestNode* authority : nodes) {
        const std::string key = TestCluster::KeyAt(*writer, authority->name());
        ASSERT_TRUE(writer->Put(key, ValueOf(key, 5 * kKiB), &two).ok());
        for (TestNode* reader : nodes) {
          EXPECT_EQ(reader->Get(key).value_or(""), ValueOf(key, 5 * kKiB));
          EXPECT_EQ(reader->Find(key)->replicas.size(), 2u);
        }
        EXPECT_TRUE(writer->Remove(key).ok());
      }
    }
  });
}

TEST(Versions, AnOlderNodesSlotsMoveToANewerOneAndBack) {
  Simulated(2, [](TestCluster& cluster) {
    TestNode& older = StartAs(cluster, "older", 0);
    const auto keys = TestCluster::KeysAt(older, "older:1", 50);
    for (const Status& status : older.PutAll(keys, kKiB)) ASSERT_TRUE(status.ok());
    TestNode& newer = StartAs(cluster, "newer", 9);
    for (const auto& read : newer.GetAll(keys, kKiB)) EXPECT_TRUE(read.ok());
    newer.Close();
    for (const auto& read : older.GetAll(keys, kKiB)) EXPECT_TRUE(read.ok());
  });
}

TEST(Versions, AStandbyThatDiesCostsADrainNoValue) {
  Simulated(4, [](TestCluster& cluster) {
    TestNode& old = cluster.Start("a");
    TestNode& other = cluster.Start("b");
    const auto keys = TestCluster::KeysAt(other, "a:1", 20);
    for (const Status& status : old.PutAll(keys, kKiB)) ASSERT_TRUE(status.ok());
    NodeConfig config = TestCluster::Config("a");
    config.initial_state = NodeState::kStandby;
    config.succeeds = true;
    config.listen_host = "a-next";
    config.segment_name = "a-next-segment";
    TestNode& next = cluster.Start(config);
    const uint64_t limit_ms = cluster.runtime().NowMs() + 60'000;
    ASSERT_TRUE(old.node().PlanHandoff({}, limit_ms).ok());
    cluster.Kill(next);
    const auto moved = old.node().EvacuateAll({}, limit_ms);
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ(moved->remaining_objects, 0u);
    EXPECT_LT(cluster.runtime().NowMs(), limit_ms - 30'000);
    for (const auto& read : other.GetAll(keys, kKiB)) EXPECT_TRUE(read.ok());
  });
}

TEST(Versions, AnOlderNodeIsNotAskedWhatItDoesNotKnow) {
  Simulated(3, [](TestCluster& cluster) {
    TestNode& older = StartAs(cluster, "older", 0);
    TestNode& newer = StartAs(cluster, "newer", kProtocolMinor);
    const ReplicateConfig there{.preferred_segments = {"older-segment"}};
    ASSERT_TRUE(newer.Put("k", ValueOf("k", kKiB), &there).ok());
    older.transport.Take();
    MigrationQueue queue(newer.core(), {});
    const MigrationOrder order{{}, "k", true, "older-segment", {"newer-segment"}};
    const std::string refused = queue.Submit(order)->id;
    const std::string done = queue.Submit(order, "newer")->id;
    for (int i = 0; i < 1'000 && queue.Get(done)->state != MigrationState::kSucceeded; ++i) {
      cluster.runtime().SleepMs(10);
    }
    EXPECT_EQ(queue.Get(refused)->state, MigrationState::kFailed);
    EXPECT_EQ(queue.Get(refused)->last_error.code, ErrorCode::kUnsupported);
    EXPECT_EQ(queue.Get(done)->state, MigrationState::kSucceeded);
    EXPECT_EQ(older.Get("k").value_or(""), ValueOf("k", kKiB));
  });
}

TEST(Versions, AnotherMajorIsRefusedWhenANodeOpensAndNothingIsLeftBehind) {
  Simulated(6, [](TestCluster& cluster) {
    TestNode& member = cluster.Start("member");
    LeaseRecord other;
    other.id.stable_id = "other";
    other.endpoint = "h:1";
    other.protocol_major = 2;
    ASSERT_TRUE(member.metadata.Acquire(other, 60'000, std::nullopt, false).ok());
    auto late = cluster.Make();
    const Status status = late->Open(TestCluster::Config("late"));
    ASSERT_EQ(status.code(), ErrorCode::kUnsupported);
    EXPECT_NE(status.error().context.find("node other:1 at h:1 speaks protocol 2, this one 1"),
              std::string::npos)
        << status.error().context;
    late.reset();
    cluster.Settle();
    EXPECT_EQ(member.core().view()->FindName("late:1"), routing::kNoNode);
    EXPECT_TRUE(member.Put("k", ValueOf("k", kKiB)).ok());
  });
}

}  // namespace
}  // namespace mooncake::node

// What becomes of a change of a node's state, and of a plan to hand over, while the metadata
// service is away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using ::testing::HasSubstr;
using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr uint64_t kMetadataMs = 3'000;  // Its timeout.
constexpr MetadataFault kAway[] = {MetadataFault::kDown, MetadataFault::kHung};

NodeState StateSeenBy(TestNode& observer, const std::string& node) {
  const ViewPtr view = observer.core().view();
  const routing::NodeIndex index = view->FindName(node);
  return index == routing::kNoNode ? NodeState::kOffline : view->node(index).lease.state;
}

void ComesBack(TestCluster& cluster, TestNode& node) {
  node.metadata.SetFault(MetadataFault::kNone);
  cluster.runtime().SleepMs(kMetadataMs + 3'000);
}

TEST(States, ANodeTakesNoMoreValuesThoughTheMetadataServiceIsAway) {
  for (const MetadataFault fault : kAway) {
    for (const NodeState state : {NodeState::kDraining, NodeState::kStandby}) {
      Simulated(1, [&](TestCluster& cluster) {
        TestNode& a = cluster.Start("a");
        TestNode& b = cluster.Start("b");
        a.metadata.SetFault(fault);
        const uint64_t asked_ms = cluster.runtime().NowMs();
        const Status entered = a.node().SetState(state);
        ASSERT_TRUE(entered.ok()) << entered.error().ToString();
        EXPECT_LE(cluster.runtime().NowMs(), asked_ms + kMetadataMs);
        EXPECT_EQ(StateSeenBy(b, "a:1"), NodeState::kActive);
        ReplicateConfig on_a;
        on_a.preferred_segments = {"a-segment"};
        EXPECT_FALSE(b.Put("named", "v", &on_a).ok());
        for (const Status& put : b.PutAll(TestCluster::KeysAt(b, "a:1", 20), 1'000)) {
          EXPECT_TRUE(put.ok()) << put.error().ToString();
        }
        EXPECT_EQ(a.UsedBytes(), 0u);
        ComesBack(cluster, a);
        EXPECT_EQ(StateSeenBy(b, "a:1"), state);
      });
    }
  }
}

// Somebody else may have its name by now.
TEST(States, ANodeThatTookNoValuesTakesNoneBeforeTheMetadataServiceHasHeardOfIt) {
  for (const MetadataFault fault : kAway) {
    Simulated(2, [&](TestCluster& cluster) {
      TestNode& a = cluster.Start("a");
      TestNode& b = cluster.Start("b");
      ASSERT_TRUE(a.node().SetState(NodeState::kStandby).ok());
      a.metadata.SetFault(fault);
      const uint64_t asked_ms = cluster.runtime().NowMs();
      EXPECT_EQ(a.node().SetState(NodeState::kActive).code(), ErrorCode::kMetadata);
      EXPECT_LE(cluster.runtime().NowMs(), asked_ms + kMetadataMs);
      EXPECT_EQ(a.core().membership.state(), NodeState::kStandby);
      ComesBack(cluster, a);
      EXPECT_EQ(StateSeenBy(b, "a:1"), NodeState::kStandby);
      EXPECT_TRUE(a.node().SetState(NodeState::kActive).ok());
      EXPECT_EQ(StateSeenBy(b, "a:1"), NodeState::kActive);
    });
  }
}

TEST(States, AStandbyThatCannotBeActivatedStillStandsBesideItsPredecessor) {
  Simulated(3, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    NodeConfig config = TestCluster::Config("a");
    config.listen_host = "successor";
    config.initial_state = NodeState::kStandby;
    config.succeeds = true;
    TestNode& standby = cluster.Start(config);
    standby.metadata.SetFault(MetadataFault::kDown);
    EXPECT_EQ(standby.node().SetState(NodeState::kActive).code(), ErrorCode::kMetadata);
    EXPECT_EQ(standby.core().membership.record().beside, 1u);
    ComesBack(cluster, standby);
    EXPECT_TRUE(a.node().Heartbeat().ok());
    EXPECT_EQ(StateSeenBy(a, "a:2"), NodeState::kStandby);
  });
}

TEST(States, WhatTheOthersHaveNotHeardOfCanBeTakenBackMeanwhile) {
  Simulated(4, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    a.metadata.SetFault(MetadataFault::kDown);
    ASSERT_TRUE(a.node().SetState(NodeState::kDraining).ok());
    EXPECT_TRUE(a.node().SetState(NodeState::kActive).ok());
    ReplicateConfig on_a;
    on_a.preferred_segments = {"a-segment"};
    EXPECT_TRUE(b.Put("k", "v", &on_a).ok());
    ComesBack(cluster, a);
    EXPECT_EQ(StateSeenBy(b, "a:1"), NodeState::kActive);
  });
}

TEST(Handoffs, SayThatTheMetadataServiceDoesNotAnswer) {
  for (const MetadataFault fault : kAway) {
    Simulated(5, [&](TestCluster& cluster) {
      TestNode& a = cluster.Start("a");
      a.metadata.SetFault(fault);
      auto standby = cluster.Make();  // That `a` does not hear of.
      NodeConfig config = TestCluster::Config("a");
      config.listen_host = "successor";
      config.initial_state = NodeState::kStandby;
      config.succeeds = true;
      ASSERT_TRUE(standby->Open(config).ok());
      const auto plan = [&] {
        const auto planned = a.node().PlanHandoff({}, cluster.runtime().NowMs() + 5'000);
        return planned.ok() ? planned->ToString() : planned.error().ToString();
      };
      EXPECT_THAT(plan(), HasSubstr("knows no live standby of stable_id 'a' to hand over to, and "
                                    "the metadata service does not answer"));
      a.metadata.SetFault(MetadataFault::kNone);
      ASSERT_TRUE(a.node().Heartbeat().ok());
      cluster.runtime().SleepMs(2'000);
      a.metadata.SetFault(fault);
      EXPECT_THAT(plan(), HasSubstr("a:2 cannot be told to take over: injected"));
      a.metadata.SetFault(MetadataFault::kNone);
      EXPECT_EQ(plan(), "a:2");
      standby->Close();
    });
  }
}

}  // namespace
}  // namespace mooncake::node

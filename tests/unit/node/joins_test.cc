// What has joined, or become of use, a moment ago: who is told, and who looks for it.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kMiB;
using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr uint64_t kLookMs = 300;  // That a request may wait for a look.

ReplicateConfig Hard(const std::string& segment) {
  ReplicateConfig policy;
  policy.preferred_segments = {segment};
  return policy;
}

bool Knows(TestNode& observer, const std::string& segment) {
  const ViewPtr view = observer.core().view();
  for (const routing::ViewNode& node : view->nodes()) {
    for (const SegmentRecord& record : node.lease.segments) {
      if (node.storage && record.name == segment) return true;
    }
  }
  return false;
}

// Does something that `observer` hears nothing of, until it looks by itself.
void BehindTheBackOf(TestNode& observer, const std::function<void()>& change) {
  observer.metadata.SetFault(MetadataFault::kDown);
  change();
  observer.metadata.SetFault(MetadataFault::kNone);
}

std::unique_ptr<TestNode> Join(TestCluster& cluster, const std::string& name, bool routes = true) {
  auto node = cluster.Make();
  NodeConfig config = TestCluster::Config(name);
  config.labels["route"] = routes ? "true" : "false";
  const Status joined = node->Open(config);
  EXPECT_TRUE(joined.ok()) << joined.error().ToString();
  return node;
}

TEST(Joins, AllKnowAnActivatedNodeWhenThatReturns) {
  Simulated(1, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    NodeConfig config = TestCluster::Config("a");
    config.initial_state = NodeState::kStandby;
    auto& standby = cluster.Start(config);
    ASSERT_FALSE(Knows(client, "a-segment"));
    ASSERT_TRUE(standby.node().SetState(NodeState::kActive).ok());
    EXPECT_TRUE(Knows(client, "a-segment"));
  });
}

TEST(Joins, AllKnowASegmentThatWasAddedWhenThatReturns) {
  Simulated(2, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    auto& a = cluster.Start("a");
    ASSERT_TRUE(a.node().ExpandMemory(kMiB).ok());
    EXPECT_TRUE(Knows(client, "a-segment-ext-1"));
  });
}

TEST(Joins, TheFirstStorageNodeIsFoundByThePutThatNeedsIt) {
  Simulated(3, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    EXPECT_EQ(client.Put("k", "v").code(), ErrorCode::kTransport);  // It has waited for one.
    EXPECT_EQ(client.Get("k").code(), ErrorCode::kTransport);
    std::unique_ptr<TestNode> first;
    BehindTheBackOf(client, [&] { first = Join(cluster, "a"); });
    ASSERT_FALSE(Knows(client, "a-segment"));
    const uint64_t started_ms = cluster.runtime().NowMs();
    EXPECT_TRUE(client.Put("k", "v").ok());
    EXPECT_LE(cluster.runtime().NowMs(), started_ms + kLookMs);
    first->Close();
  });
}

TEST(Joins, TheFirstStorageNodeIsFoundByTheGetThatNeedsIt) {
  Simulated(4, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    EXPECT_EQ(client.Get("k").code(), ErrorCode::kTransport);
    std::unique_ptr<TestNode> first;
    BehindTheBackOf(client, [&] { first = Join(cluster, "a"); });
    ASSERT_TRUE(first->Put("k", "v").ok());
    ASSERT_FALSE(Knows(client, "a-segment"));
    EXPECT_EQ(client.Get("k").value_or(""), "v");
    first->Close();
  });
}

TEST(Joins, TheFirstStorageNodeBesideThoseThatKeepRoutesIsFound) {
  Simulated(5, [](TestCluster& cluster) {
    NodeConfig routes = TestCluster::Config("routes", 0);
    routes.labels["route"] = "true";
    auto& client = cluster.Start(routes);
    EXPECT_EQ(client.Put("k", "v").code(), ErrorCode::kNoSpace);
    std::unique_ptr<TestNode> first;
    BehindTheBackOf(client, [&] { first = Join(cluster, "a", false); });
    ASSERT_FALSE(Knows(client, "a-segment"));
    EXPECT_TRUE(client.Put("k", "v").ok());
    first->Close();
  });
}

TEST(Joins, ASegmentThatIsAMustIsFound) {
  Simulated(6, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    auto& a = cluster.Start("a");
    std::unique_ptr<TestNode> b;
    BehindTheBackOf(client, [&] { b = Join(cluster, "b"); });
    ASSERT_FALSE(Knows(client, "b-segment"));
    const ReplicateConfig on_b = Hard("b-segment");
    EXPECT_TRUE(client.Put("k", "v", &on_b).ok());
    EXPECT_GT(b->UsedBytes(), 0u);
    BehindTheBackOf(client, [&] { ASSERT_TRUE(a.node().ExpandMemory(kMiB).ok()); });
    ASSERT_FALSE(Knows(client, "a-segment-ext-1"));
    const ReplicateConfig added = Hard("a-segment-ext-1");
    EXPECT_TRUE(client.Put("l", "v", &added).ok());
    b->Close();
  });
}

TEST(Joins, ASegmentThatIsAMustIsFoundAtTheSuccessorOfItsNode) {
  Simulated(7, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    cluster.Start("a");
    auto& old = cluster.Start("b");
    std::unique_ptr<TestNode> b;
    BehindTheBackOf(client, [&] {
      old.Close();
      NodeConfig config = TestCluster::Config("b");
      config.listen_host = "b-again";
      b = cluster.Make();
      ASSERT_TRUE(b->Open(config).ok());
    });
    ASSERT_EQ(client.core().view()->FindName("b:2"), routing::kNoNode);
    const ReplicateConfig on_b = Hard("b-segment");
    const Status put = client.Put("k", "v", &on_b);
    EXPECT_TRUE(put.ok()) << put.error().ToString();
    EXPECT_GT(b->UsedBytes(), 0u);
    b->Close();
  });
}

TEST(Joins, WhatIsNotThereIsLookedForNoMoreOftenThanOnceInAWhile) {
  Simulated(8, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    cluster.Start("a");
    const ReplicateConfig nowhere = Hard("nowhere");
    const uint64_t calls = client.metadata.calls();
    const uint64_t started_ms = cluster.runtime().NowMs();
    for (int i = 0; i < 200; ++i) {
      EXPECT_EQ(client.Put("k", "v", &nowhere).code(), ErrorCode::kNotFound);
      cluster.runtime().SleepMs(5);
    }
    const uint64_t seconds = (cluster.runtime().NowMs() - started_ms) / 1'000 + 1;
    EXPECT_GT(client.metadata.calls(), calls + 5);
    EXPECT_LE(client.metadata.calls(), calls + seconds * 25);
  });
}

TEST(Joins, AServiceThatHangsIsWaitedForOnceAndNotForLong) {
  Simulated(9, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    cluster.Start("a");
    const ReplicateConfig nowhere = Hard("nowhere");
    for (const MetadataFault fault : {MetadataFault::kHung, MetadataFault::kDown}) {
      client.metadata.SetFault(fault);
      const uint64_t started_ms = cluster.runtime().NowMs();
      for (int i = 0; i < 50; ++i) {
        EXPECT_EQ(client.Put("k", "v", &nowhere).code(), ErrorCode::kNotFound);
      }
      EXPECT_LE(cluster.runtime().NowMs(), started_ms + kLookMs + 50);
    }
  });
}

TEST(Joins, WhatIsInTheViewIsWrittenWithoutAWordToTheService) {
  Simulated(10, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    cluster.Start("a");
    const ReplicateConfig on_a = Hard("a-segment");
    const uint64_t calls = client.metadata.calls();
    const uint64_t started_ms = cluster.runtime().NowMs();
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(client.Put("k" + std::to_string(i), "v", i % 2 == 0 ? &on_a : nullptr).ok());
    }
    // No more than the polls and the heartbeats of that time.
    const uint64_t seconds = (cluster.runtime().NowMs() - started_ms) / 1'000 + 1;
    EXPECT_LE(client.metadata.calls(), calls + 2 * seconds);
  });
}

// Status of an attempt to start another node beside those of the cluster.
Status Attempt(TestCluster& cluster, NodeConfig config, const std::string& host) {
  config.listen_host = host;
  config.startup_timeout_ms = 3'000;
  return cluster.Make()->Open(config);
}

NodeConfig StandbyOf(const std::string& name) {
  NodeConfig config = TestCluster::Config(name);
  config.initial_state = NodeState::kStandby;
  config.succeeds = true;
  return config;
}

TEST(Joins, ASecondStandbyIsToldOfTheFirst) {
  Simulated(11, [](TestCluster& cluster) {
    cluster.Start("a");
    NodeConfig config = StandbyOf("a");
    config.listen_host = "first";
    auto& first = cluster.Start(config);
    const Status second = Attempt(cluster, StandbyOf("a"), "second");
    ASSERT_EQ(second.code(), ErrorCode::kConflict);
    const std::string& text = second.error().context;
    for (const std::string part : {"stable_id 'a'", "a:1 at a:", "standby successor a:2 at first:",
                                   "allowed: one standby", "startup_timeout_ms was over"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    // It waits, as the first one may go.
    std::unique_ptr<Thread> goes = cluster.runtime().Spawn("goes", [&] {
      cluster.runtime().SleepMs(1'000);
      first.Close();
    });
    auto third = cluster.Make();
    config.listen_host = "third";
    const Status joined = third->Open(config);
    goes->Join();
    ASSERT_TRUE(joined.ok()) << joined.error().ToString();
    EXPECT_EQ(third->name(), "a:3");
    third->Close();
  });
}

TEST(Joins, TheNameOfASegmentOfALiveOwnerIsRefusedAtOnce) {
  Simulated(12, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    NodeConfig config = TestCluster::Config("b");
    config.segment_name = "a-segment";
    const uint64_t started_ms = cluster.runtime().NowMs();
    const Status refused = Attempt(cluster, config, "b");
    ASSERT_EQ(refused.code(), ErrorCode::kConflict);
    EXPECT_LT(cluster.runtime().NowMs(), started_ms + 1'000);
    const std::string& text = refused.error().context;
    for (const std::string part : {"local_segment_name 'a-segment'",
                                   "live node a:1 at a:", "choose another local_segment_name"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    // A successor has the name of its predecessor's.
    auto standby = cluster.Make();
    NodeConfig successor = StandbyOf("a");
    successor.listen_host = "successor";
    const Status joined = standby->Open(successor);
    EXPECT_TRUE(joined.ok()) << joined.error().ToString();
    standby->Close();
    // One whose process is gone keeps nothing.
    cluster.Kill(a);
    auto b = cluster.Make();
    const Status free = b->Open(config);
    EXPECT_TRUE(free.ok()) << free.error().ToString();
    b->Close();
  });
}

NodeConfig Namesake(const std::string& name) {
  NodeConfig config = TestCluster::Config(name);
  config.segment_name = "a-segment";
  return config;
}

TEST(Joins, TheNameOfASegmentOfANodeThatDrainsIsWaitedFor) {
  Simulated(13, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    ASSERT_TRUE(a.node().SetState(NodeState::kDraining).ok());
    const uint64_t started_ms = cluster.runtime().NowMs();
    const Status refused = Attempt(cluster, Namesake("b"), "b");
    ASSERT_EQ(refused.code(), ErrorCode::kConflict);
    EXPECT_GE(cluster.runtime().NowMs(), started_ms + 2'000);
    const std::string& text = refused.error().context;
    for (const std::string part : {"local_segment_name 'a-segment'", "node a:1 at a:",
                                   "which is leaving", "startup_timeout_ms was over"}) {
      EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    std::unique_ptr<Thread> goes = cluster.runtime().Spawn("goes", [&] {
      cluster.runtime().SleepMs(1'000);
      a.Close();
    });
    auto b = cluster.Make();
    const Status joined = b->Open(Namesake("b"));
    goes->Join();
    EXPECT_TRUE(joined.ok()) << joined.error().ToString();
    if (joined.ok()) b->Close();
  });
}

TEST(Joins, TheNameOfASegmentOfANodeThatClosesIsWaitedFor) {
  Simulated(14, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    std::unique_ptr<Thread> goes;
    {
      base::Gate::Pass caller(a.node().gate());
      goes = cluster.runtime().Spawn("goes", [&] { a.Close(); });
      cluster.runtime().SleepMs(100);
      auto b = cluster.Make();
      const Status joined = b->Open(Namesake("b"));
      EXPECT_TRUE(joined.ok()) << joined.error().ToString();
      if (joined.ok()) b->Close();
    }
    goes->Join();
  });
}

TEST(Joins, OfTwoThatBringTheNameOfASegmentAtOnceOneJoins) {
  for (uint64_t seed = 15; seed < 45; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      auto b = cluster.Make();
      auto c = cluster.Make();
      Status joined_b;
      std::unique_ptr<Thread> other =
          cluster.runtime().Spawn("other", [&] { joined_b = b->Open(Namesake("b")); });
      const Status joined_c = c->Open(Namesake("c"));
      other->Join();
      ASSERT_NE(joined_b.ok(), joined_c.ok());
      const Status& refused = joined_b.ok() ? joined_c : joined_b;
      EXPECT_EQ(refused.code(), ErrorCode::kConflict);
      EXPECT_NE(refused.error().context.find("local_segment_name 'a-segment'"), std::string::npos);
      EXPECT_EQ(b->metadata.ReadChanges(0).value_or({}).leases.size(), 1u);
      (joined_b.ok() ? b : c)->Close();
    });
  }
}

TEST(Joins, ASegmentThatIsAddedHasANameThatNobodyElseHas) {
  Simulated(45, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    NodeConfig taken = TestCluster::Config("b");
    taken.segment_name = "a-segment-ext-1";
    cluster.Start(taken);
    const auto name = [](TestNode& node) {
      const auto added = node.node().ExpandMemory(kMiB);
      return added.ok() ? added->name : added.error().ToString();
    };
    EXPECT_EQ(name(a), "a-segment-ext-2");
    EXPECT_EQ(name(a), "a-segment-ext-3");
    NodeConfig config = Namesake("client");
    config.segment_bytes = 0;
    auto& client = cluster.Start(config);
    EXPECT_EQ(name(client), "a-segment-ext-4");
  });
}

}  // namespace
}  // namespace mooncake::node

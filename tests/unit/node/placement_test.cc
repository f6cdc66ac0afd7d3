#include "node/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "node/put_op.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using ::testing::HasSubstr;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

// The candidates by stable_id, best first; "self" for this node.
std::vector<std::string> Order(TestNode& node, const std::string& key,
                               const ReplicateConfig* policy, bool authority_last = false) {
  const ViewPtr view = node.core().view();
  std::vector<std::string> names;
  for (const Candidate& candidate :
       PlaceKey(node.core(), *view, {.ref = node.Ref(key)}, policy, authority_last, nullptr)
           .candidates) {
    names.push_back(candidate.node == routing::kNoNode
                        ? "self"
                        : view->node(candidate.node).lease.id.stable_id);
  }
  return names;
}

Placement Plan(TestNode& node, const std::string& key, const ReplicateConfig& policy) {
  return PlaceKey(node.core(), *node.core().view(), {.ref = node.Ref(key)}, &policy, false,
                  nullptr);
}

struct FourNodes {
  explicit FourNodes(TestCluster& cluster)
      : a(cluster.Start("a")),
        b(cluster.Start("b")),
        c(cluster.Start("c")),
        client(cluster.Start("client", 0)) {}
  TestNode& a;
  TestNode& b;
  TestNode& c;
  TestNode& client;
};

TEST(Placement, ComesToTheAuthorityFirstAndNamesEachOwnerOnce) {
  Simulated(1, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const ReplicateConfig policy{.prefer_local = false};
    for (const std::string authority : {"a", "b", "c"}) {
      const std::string key = TestCluster::KeyAt(nodes.client, authority + ":1");
      const auto order = Order(nodes.client, key, &policy);
      EXPECT_EQ(order[0], authority);
      EXPECT_EQ(std::set<std::string>(order.begin(), order.end()),
                (std::set<std::string>{"a", "b", "c"}));
      EXPECT_EQ(order.size(), 3u);
    }
  });
}

// The key may have another authority by now, which has not been asked yet.
TEST(Placement, AsksAnAuthorityThatHasNoRoomLast) {
  Simulated(2, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    const auto order = Order(nodes.client, key, nullptr, true);
    ASSERT_EQ(order.size(), 3u);
    EXPECT_EQ(order.back(), "a");
    EXPECT_EQ(std::count(order.begin(), order.end(), "a"), 1);
  });
}

TEST(Placement, PrefersTheOwnSegmentOnlyWhereThereIsOne) {
  Simulated(3, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "b:1");
    ReplicateConfig policy{.prefer_local = true};
    EXPECT_EQ(Order(nodes.a, key, &policy)[0], "self");
    EXPECT_EQ(Order(nodes.client, key, &policy)[0], "b");
    policy = {.prefer_local = false, .prefer_alloc_in_same_node = true};
    EXPECT_EQ(Order(nodes.a, key, &policy)[0], "self");
    policy = {.prefer_local = false};
    EXPECT_EQ(Order(nodes.a, key, &policy)[0], "b");
  });
}

TEST(Placement, PreferredOwnersComeBeforeLocalAndUnavailableOnesAreSkipped) {
  Simulated(4, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    ReplicateConfig policy;
    policy.preferred_storage_owners = {"nobody", "c", "b:7", "client", "b:1"};
    EXPECT_EQ(Order(nodes.a, key, &policy), (std::vector<std::string>{"c", "b", "self"}));
  });
}

TEST(Placement, WhereNobodyTakesValuesThatIsSaidRatherThanThatThereIsNoRoom) {
  Simulated(15, [](TestCluster& cluster) {
    TestNode& owner = cluster.Start("owner");
    TestNode& client = cluster.Start("client", 0);
    NodeConfig config = TestCluster::Config("alone");
    config.options.routed_writes = false;
    config.labels["storage"] = "false";
    TestNode& alone = cluster.Start(config);
    const auto why = [](TestNode& node) {
      return NoRoom(node.core(), *node.core().view()).context;
    };
    EXPECT_EQ(why(client), "no storage node has room");
    EXPECT_EQ(why(alone), "this node has no room");
    ASSERT_TRUE(client.metadata.ReportSuspect({"owner", 1}).ok());
    ASSERT_TRUE(client.core().membership.RefreshTo(0, client.Deadline()));
    EXPECT_EQ(why(client), "all storage nodes are suspect, and nobody else takes values");
    ASSERT_TRUE(owner.node().Heartbeat().ok());
    ASSERT_TRUE(owner.node().SetState(NodeState::kDraining).ok());
    ASSERT_TRUE(alone.node().SetState(NodeState::kDraining).ok());
    cluster.Settle();
    EXPECT_EQ(why(client), "no storage node is active, and others take no new values");
    EXPECT_EQ(why(alone), "this node takes no new values: not active");
    const std::vector<std::string> keys = {"key"};
    for (TestNode* node : {&client, &alone}) {
      const Status refused = node->PutAll(keys, 1'000)[0];
      EXPECT_EQ(refused.code(), ErrorCode::kNoSpace);
      EXPECT_NE(refused.error().context.find(why(*node)), std::string::npos);
    }
  });
}

TEST(Placement, HardSegmentsAreTheOnlyCandidates) {
  Simulated(5, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    ReplicateConfig policy;
    policy.preferred_segments = {"c-segment"};
    EXPECT_EQ(Order(nodes.client, key, &policy), (std::vector<std::string>{"c"}));
    policy.preferred_segments = {"nowhere"};
    EXPECT_EQ(Plan(nodes.client, key, policy).refused.code, ErrorCode::kNotFound);
  });
}

// Says so, and not that there is no room: there is.
TEST(Placement, ASegmentThatDrainsIsNamedAsTheReason) {
  Simulated(19, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    ASSERT_TRUE(nodes.c.node().ExpandMemory(testing::kMiB).ok());
    ASSERT_TRUE(nodes.c.node().DrainSegment("c-segment").ok());
    cluster.Settle();
    ReplicateConfig policy;
    policy.preferred_segments = {"c-segment"};
    for (TestNode* node : {&nodes.client, &nodes.c}) {
      const Status put = node->Put("k", "v", &policy);
      ASSERT_EQ(put.code(), ErrorCode::kNoSpace);
      EXPECT_THAT(put.error().context, HasSubstr("'c-segment' is draining"));
    }
    policy.preferred_segments = {"c-segment-ext-1"};
    EXPECT_TRUE(nodes.client.Put("k", "v", &policy).ok());
    ASSERT_TRUE(nodes.c.node().SetState(NodeState::kDraining).ok());
    const Status put = nodes.c.Put("l", "v", &policy);
    ASSERT_EQ(put.code(), ErrorCode::kNoSpace);
    EXPECT_THAT(put.error().context, HasSubstr("'c-segment-ext-1' is draining"));
    const std::string large(testing::kMiB * 64, 'v');  // Room is the reason where it is.
    policy.preferred_segments = {"a-segment"};
    EXPECT_THAT(nodes.client.Put("m", large, &policy).error().context, HasSubstr("full"));
  });
}

TEST(Placement, SoftSegmentsComeFirstAndMayBeMissing) {
  Simulated(6, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    ReplicateConfig policy{.prefer_local = false, .with_soft_pin = true};
    policy.preferred_segments = {"nowhere", "c-segment"};
    const auto order = Order(nodes.client, key, &policy);
    EXPECT_EQ(order.size(), 3u);
    EXPECT_EQ(order[0], "c");
    EXPECT_EQ(order[1], "a");
  });
}

TEST(Placement, AnOwnSegmentIsOfferedAsSoonAsItIsThere) {
  Simulated(34, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    cluster.Start("b");
    ASSERT_TRUE(a.node().ExpandMemory(testing::kMiB).ok());
    const ReplicateConfig policy{.preferred_segments = {"a-segment-ext-1"}};
    const Status put = a.Put("k", "v", &policy);
    EXPECT_TRUE(put.ok()) << put.error().ToString();
    EXPECT_EQ(a.core().extents.Stats()[1].used_bytes, 64u);
  });
}

// Then its node has others, and is a candidate with these.
TEST(Placement, ASoftSegmentThatTakesNothingIsSkipped) {
  for (const bool routed : {true, false}) {
    for (const bool retired : {false, true}) {
      Simulated(33, [&](TestCluster& cluster) {
        node::NodeConfig config = TestCluster::Config("a");
        config.options.routed_writes = routed;
        auto& a = cluster.Start(config);
        ASSERT_TRUE(a.node().ExpandMemory(testing::kMiB).ok());
        ASSERT_TRUE(a.node().DrainSegment("a-segment-ext-1").ok());
        if (retired) {
          ASSERT_TRUE(a.node().RetireSegment("a-segment-ext-1").value_or(false));
        }
        ReplicateConfig policy{.with_soft_pin = true};
        policy.preferred_segments = {"a-segment-ext-1"};
        for (const bool local : {true, false}) {
          policy.prefer_local = local;
          const Status put = a.Put("k", "v", &policy);
          EXPECT_TRUE(put.ok()) << put.error().ToString();
        }
        if (!routed) return;
        auto& b = cluster.Start("b");
        policy.replica_num = 2;
        EXPECT_EQ(Plan(a, "l", policy).preferred, 0u);
        for (TestNode* node : {&a, &b}) {
          ASSERT_TRUE(node->Put("l", "v", &policy).ok());
          EXPECT_EQ(a.Find("l")->replicas.size(), 2u);
        }
      });
    }
  }
}

TEST(Placement, ASoftSegmentThatIsTooSmallIsSkipped) {
  Simulated(35, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    ASSERT_TRUE(a.node().ExpandMemory(64 * testing::kKiB).ok());
    auto& client = cluster.Start("client", 0);
    ReplicateConfig policy{.with_soft_pin = true};
    policy.preferred_segments = {"a-segment-ext-1"};
    const std::string value(100'000, 'x');
    for (TestNode* node : {&a, &client}) {
      const Status put = node->Put("k", value, &policy);
      EXPECT_TRUE(put.ok()) << put.error().ToString();
      ASSERT_TRUE(node->Put("small", "v", &policy).ok());
      EXPECT_EQ(a.Find("small")->replicas[0].segment, 1u);
    }
  });
}

TEST(Placement, TheOwnEndpointOrHostMeansLocal) {
  Simulated(7, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "b:1");
    const std::string endpoint = nodes.a.node().endpoint();
    for (const std::string& own :
         {endpoint, endpoint.substr(0, endpoint.rfind(':')), std::string("a-segment")}) {
      ReplicateConfig policy{.prefer_local = false};
      policy.preferred_segments = {own};
      EXPECT_EQ(Order(nodes.a, key, &policy), (std::vector<std::string>{"self"})) << own;
    }
  });
}

TEST(Placement, RefusesASegmentThatIsNamedTwice) {
  Simulated(8, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    ReplicateConfig policy{.replica_num = 2};
    policy.preferred_segments = {"c-segment", "c-segment"};
    EXPECT_EQ(Plan(nodes.client, "k", policy).refused.code, ErrorCode::kConflict);
    EXPECT_EQ(nodes.client.Put("k", "v", &policy).code(), ErrorCode::kConflict);
    policy.with_soft_pin = true;
    EXPECT_EQ(Plan(nodes.client, "k", policy).refused.code, ErrorCode::kConflict);
  });
}

TEST(Placement, RefusesZeroCopiesWhateverTheRestOfThePolicySays) {
  Simulated(9, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    for (bool local : {false, true}) {
      const ReplicateConfig policy{.replica_num = 0, .prefer_local = local};
      EXPECT_EQ(nodes.a.Put("k", "v", &policy).code(), ErrorCode::kInvalidState);
    }
    EXPECT_EQ(nodes.a.Get("k").code(), ErrorCode::kNotFound);
  });
}

TEST(Placement, WithoutRoutedWritesOnlyTheOwnSegmentCounts) {
  Simulated(10, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    node::NodeConfig config = TestCluster::Config("local");
    config.options.routed_writes = false;
    auto& local = cluster.Start(config);
    ReplicateConfig policy{.replica_num = 3, .prefer_local = false};
    policy.preferred_storage_owners = {"a"};
    EXPECT_EQ(Order(local, "k", &policy), (std::vector<std::string>{"self"}));
    ASSERT_TRUE(local.Put("k", "v", &policy).ok());
    EXPECT_EQ(local.UsedBytes(), 64u);
    EXPECT_EQ(Plan(local, "k", policy).copies, 3u);  // Too few are counted, so not forgotten here.
  });
}

TEST(Placement, WithoutRoutedWritesASegmentElsewhereIsRefusedUnlessSoft) {
  Simulated(10, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    node::NodeConfig config = TestCluster::Config("local");
    config.options.routed_writes = false;
    auto& local = cluster.Start(config);
    const auto put = [&](std::vector<std::string> segments, uint32_t copies, bool soft) {
      ReplicateConfig policy{.replica_num = copies, .with_soft_pin = soft};
      policy.preferred_segments = std::move(segments);
      return local.Put("k", "v", &policy).code();
    };
    EXPECT_EQ(put({"nope"}, 1, false), ErrorCode::kNotFound);
    EXPECT_EQ(put({"a-segment"}, 1, false), ErrorCode::kNotFound);
    EXPECT_EQ(put({"local-segment", "a-segment"}, 2, false), ErrorCode::kNotFound);
    EXPECT_EQ(local.Get("k").code(), ErrorCode::kNotFound);
    EXPECT_EQ(put({"local-segment"}, 1, false), ErrorCode::kOk);
    EXPECT_EQ(put({local.node().endpoint()}, 1, false), ErrorCode::kOk);
    EXPECT_EQ(put({"a-segment", "local-segment"}, 1, false), ErrorCode::kOk);
    EXPECT_EQ(put({"local-segment"}, 2, false), ErrorCode::kOk);
    EXPECT_EQ(put({"a-segment"}, 1, true), ErrorCode::kOk);
    EXPECT_EQ(put({"nope"}, 1, true), ErrorCode::kOk);
  });
}

TEST(Placement, KeepsToTheOwnPool) {
  Simulated(11, [](TestCluster& cluster) {
    for (const std::string name : {"p1", "p2", "q1"}) {
      node::NodeConfig config = TestCluster::Config(name);
      config.labels["pool"] = name.substr(0, 1);
      cluster.Start(config);
    }
    node::NodeConfig config = TestCluster::Config("client", 0);
    config.options.pool = "p";
    auto& client = cluster.Start(config);
    const ReplicateConfig policy{.prefer_local = false};
    for (int i = 0; i < 20; ++i) {
      const auto order = Order(client, "key-" + std::to_string(i), &policy);
      EXPECT_EQ(std::set<std::string>(order.begin(), order.end()),
                (std::set<std::string>{"p1", "p2"}));
    }
  });
}

// Nodes "x0", "x1", ..., each pair of them on a host of its own.
TestNode& StartInPairs(TestCluster& cluster, const std::string& hosts) {
  for (const char host : hosts) {
    for (const char number : {'0', '1'}) {
      node::NodeConfig config = TestCluster::Config(std::string{host, number});
      config.labels["host"] = std::string(1, host);
      cluster.Start(config);
    }
  }
  return cluster.Start("client", 0);
}

std::set<char> HostsOfCopies(TestNode& client, const std::string& key) {
  std::set<char> hosts;
  const auto route = client.Find(key);
  for (const Place& place : route->replicas) {
    hosts.insert(client.core().names.NameOf(place.owner)[0]);
  }
  return hosts;
}

TEST(Placement, CopiesGoToDifferentHostsWhileThereAreAny) {
  Simulated(15, [](TestCluster& cluster) {
    TestNode& client = StartInPairs(cluster, "xyz");
    for (uint32_t copies = 1; copies <= 4; ++copies) {
      const ReplicateConfig policy{.replica_num = copies, .prefer_local = false};
      for (int i = 0; i < 20; ++i) {
        const std::string key = std::to_string(copies) + "/" + std::to_string(i);
        ASSERT_TRUE(client.Put(key, "v", &policy).ok());
        EXPECT_EQ(client.Find(key)->replicas.size(), copies);
        EXPECT_EQ(HostsOfCopies(client, key).size(), std::min(copies, 3u)) << key;
      }
    }
  });
}

TEST(Placement, AnEvacuatedCopyStaysAwayFromTheOthersHosts) {
  Simulated(19, [](TestCluster& cluster) {
    TestNode& client = StartInPairs(cluster, "xy");
    node::NodeConfig config = TestCluster::Config("x2");
    config.labels["host"] = "x";
    TestNode& leaver = cluster.Start(config);
    ReplicateConfig policy{.replica_num = 2, .prefer_local = false};
    policy.preferred_storage_owners = {"x2", "y0"};
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(client.Put(std::to_string(i), "v", &policy).ok());
    }
    const auto moved = leaver.node().EvacuateAll("", client.Deadline());
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ(moved->remaining_objects, 0u);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(HostsOfCopies(client, std::to_string(i)), (std::set<char>{'x', 'y'}));
    }
  });
}

TEST(Placement, OwnersThatWereAskedForComeBeforeDifferentHosts) {
  Simulated(16, [](TestCluster& cluster) {
    TestNode& client = StartInPairs(cluster, "xy");
    ReplicateConfig policy{.replica_num = 2, .prefer_local = false};
    policy.preferred_storage_owners = {"x0", "x1"};
    ASSERT_TRUE(client.Put("k", "v", &policy).ok());
    EXPECT_EQ(HostsOfCopies(client, "k"), (std::set<char>{'x'}));
    policy.preferred_storage_owners = {"y1"};
    ASSERT_TRUE(client.Put("l", "v", &policy).ok());
    EXPECT_EQ(HostsOfCopies(client, "l"), (std::set<char>{'x', 'y'}));
  });
}

TEST(Placement, TwoSegmentsOfOneOwnerAreBothOffered) {
  Simulated(17, [](TestCluster& cluster) {
    auto& owner = cluster.Start("owner");
    auto& client = cluster.Start("client", 0);
    ASSERT_TRUE(owner.node().ExpandMemory(testing::kMiB).ok());
    cluster.Settle();
    ReplicateConfig policy;
    policy.preferred_segments = {"owner-segment", "owner-segment-ext-1"};
    EXPECT_EQ(Plan(client, "k", policy).refused.code, ErrorCode::kOk);
  });
}

TEST(Placement, PutsStayInTheOwnPoolWhoeverTheAuthorityIs) {
  Simulated(18, [](TestCluster& cluster) {
    for (const std::string name : {"p1", "q1", "q2"}) {
      node::NodeConfig config = TestCluster::Config(name);
      config.labels["pool"] = name.substr(0, 1);
      cluster.Start(config);
    }
    node::NodeConfig config = TestCluster::Config("client", 0);
    config.options.pool = "p";
    auto& client = cluster.Start(config);
    for (const std::string authority : {"p1:1", "q1:1", "q2:1"}) {
      const std::string key = TestCluster::KeyAt(client, authority);
      ASSERT_TRUE(client.Put(key, "v").ok());
      EXPECT_EQ(client.core().names.NameOf(client.Find(key)->replicas.at(0).owner), "p1:1");
      EXPECT_EQ(client.Get(key).value_or(""), "v");
    }
  });
}

TEST(Placement, FewerOwnersThanCopiesGivesAsManyCopiesAsOwners) {
  Simulated(12, [](TestCluster& cluster) {
    FourNodes nodes(cluster);
    const ReplicateConfig policy{.replica_num = 5, .prefer_local = false};
    ASSERT_TRUE(nodes.client.Put("k", "v", &policy).ok());
    EXPECT_EQ(nodes.client.Find("k")->replicas.size(), 3u);
    EXPECT_EQ(nodes.client.Get("k").value_or(""), "v");
  });
}

TEST(Placement, AHardSegmentThatHasNoRoomFailsThePut) {
  Simulated(13, [](TestCluster& cluster) {
    cluster.Start("small", 64 * testing::kKiB);
    auto& large = cluster.Start("large");
    ReplicateConfig policy;
    policy.preferred_segments = {"small-segment"};
    const std::string value(100'000, 'x');
    EXPECT_EQ(large.Put("k", value, &policy).code(), ErrorCode::kNoSpace);
    policy.with_soft_pin = true;
    EXPECT_TRUE(large.Put("k", value, &policy).ok());
  });
}

TEST(Placement, AHardSegmentIsNotReplacedByTheOtherCopies) {
  Simulated(14, [](TestCluster& cluster) {
    cluster.Start("small", 64 * testing::kKiB);
    auto& large = cluster.Start("large");
    ReplicateConfig policy{.replica_num = 2};
    policy.preferred_segments = {"small-segment"};
    EXPECT_EQ(large.Put("k", std::string(100'000, 'x'), &policy).code(), ErrorCode::kNoSpace);
    EXPECT_EQ(large.UsedBytes(), 0u);
  });
}

}  // namespace
}  // namespace mooncake::node

// Where the values of a node that drains go, while others come and go.
#include "node/evacuation.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

// The names of the owners, one for each replica.
std::multiset<std::string> Owners(TestNode& asked, std::string_view key) {
  std::multiset<std::string> owners;
  const auto route = asked.Find(key);
  if (!route.ok()) return owners;
  for (const Place& place : route->replicas) owners.insert(asked.core().names.NameOf(place.owner));
  return owners;
}

// A node "a" with a plain value and soft-pinned ones, which also have a copy on b. All of them are
// planned to move at once, and the plain one goes first.
struct Draining {
  Draining(TestCluster& cluster, TestNode& a) : a(a), b(cluster.Start("b")), c(cluster.Start("c")) {
    const ReplicateConfig plain{.preferred_segments = {"a-segment"}};
    EXPECT_TRUE(a.Put("plain", ValueOf("plain", kKiB), &plain).ok());
    ReplicateConfig both{.replica_num = 2, .with_soft_pin = true};
    both.preferred_segments = {"a-segment", "b-segment"};
    for (const std::string& key : pinned) {
      EXPECT_TRUE(c.Put(key, ValueOf(key, kKiB), &both).ok());
      EXPECT_EQ(Owners(c, key), (std::multiset<std::string>{"a:1", "b:1"}));
    }
    cluster.Settle();  // The owners know that they are live.
  }

  // Evacuates a; `act` runs when all is planned and nothing is written.
  EvacuationResult Evacuate(std::function<void()> act) {
    bool acted = false;
    a.transport.BeforeNext(static_cast<uint16_t>(MessageType::kWrite), [&] {
      act();
      acted = true;
      EXPECT_TRUE(a.core().membership.RefreshTo(0, a.Deadline()));
    });
    auto moved = a.node().EvacuateAll({}, a.Deadline());
    EXPECT_TRUE(moved.ok() && acted);
    return moved.value_or({});
  }

  void ExpectReadable() {
    EXPECT_EQ(c.Get("plain").value_or(""), ValueOf("plain", kKiB));
    for (const std::string& key : pinned) EXPECT_EQ(c.Get(key).value_or(""), ValueOf(key, kKiB));
  }

  TestNode& a;
  TestNode& b;
  TestNode& c;
  const std::vector<std::string> pinned{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
};

TEST(Evacuation, CopiesStayOnDistinctNodesWhoeverJoinsMeanwhile) {
  Simulated(1, [](TestCluster& cluster) {
    Draining nodes(cluster, cluster.Start("a"));
    const EvacuationResult result = nodes.Evacuate([&] { cluster.Start("0"); });
    EXPECT_EQ(result.moved, 1 + nodes.pinned.size()) << result.last_error.ToString();
    EXPECT_EQ(result.remaining_objects, 0u);
    for (const std::string& key : nodes.pinned) {
      EXPECT_EQ(Owners(nodes.c, key), (std::multiset<std::string>{"b:1", "c:1"}));
    }
    nodes.ExpectReadable();
  });
}

TEST(Evacuation, WhatWasToGoToANodeThatLeavesGoesElsewhere) {
  Simulated(2, [](TestCluster& cluster) {
    TestNode& first = cluster.Start("0");
    Draining nodes(cluster, cluster.Start("a"));
    const EvacuationResult result = nodes.Evacuate([&] { first.Close(); });
    EXPECT_EQ(result.moved, 1 + nodes.pinned.size()) << result.last_error.ToString();
    EXPECT_EQ(result.remaining_objects, 0u);
    for (const std::string& key : nodes.pinned) {
      EXPECT_EQ(Owners(nodes.c, key), (std::multiset<std::string>{"b:1", "c:1"}));
    }
    nodes.ExpectReadable();
  });
}

// Nothing but the copies that stay is left to those whose only target has gone.
TEST(Evacuation, IsPlannedAnewWhereAllTargetsLeave) {
  Simulated(3, [](TestCluster& cluster) {
    Draining nodes(cluster, cluster.Start("a"));
    const EvacuationResult result = nodes.Evacuate([&] { nodes.c.Close(); });
    EXPECT_EQ(result.moved, 1 + nodes.pinned.size()) << result.last_error.ToString();
    EXPECT_EQ(result.remaining_objects, 0u);
    for (const std::string& key : nodes.pinned) {
      EXPECT_EQ(Owners(nodes.b, key), (std::multiset<std::string>{"b:1"}));
      EXPECT_EQ(nodes.b.Get(key).value_or(""), ValueOf(key, kKiB));
    }
  });
}

}  // namespace
}  // namespace mooncake::node

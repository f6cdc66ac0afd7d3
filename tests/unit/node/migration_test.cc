#include "node/migration.h"

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

struct ThreeNodes {
  explicit ThreeNodes(TestCluster& cluster)
      : a(cluster.Start("a")), b(cluster.Start("b")), c(cluster.Start("c")) {}
  TestNode& a;
  TestNode& b;
  TestNode& c;
};

std::set<std::string> Owners(TestNode& asked, std::string_view key) {
  std::set<std::string> owners;
  const auto route = asked.Find(key);
  if (!route.ok()) return owners;
  for (const Place& place : route->replicas) owners.insert(asked.core().names.NameOf(place.owner));
  return owners;
}

void PutOn(TestNode& node, const std::string& key, const std::string& segment, uint64_t version = 0,
           bool soft_pin = false) {
  ReplicateConfig policy;
  policy.preferred_segments = {segment};
  policy.with_soft_pin = soft_pin;
  ASSERT_TRUE(node.Put(key, ValueOf(key, 10 * kKiB, version), &policy).ok());
}

MigrationOrder Order(std::string key, bool move, std::vector<std::string> targets,
                     std::string source = "a-segment") {
  return {{}, std::move(key), move, std::move(source), std::move(targets)};
}

TEST(Migration, CopyAddsAReplicaInEachTarget) {
  Simulated(1, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    PutOn(nodes.b, "k", "a-segment");
    const auto order = Order("k", false, {"b-segment", "c-segment"});
    ASSERT_TRUE(Migrate(nodes.a.core(), order, nodes.a.Deadline()).ok());
    EXPECT_EQ(Owners(nodes.c, "k"), (std::set<std::string>{"a:1", "b:1", "c:1"}));
    EXPECT_EQ(nodes.c.Get("k").value(), ValueOf("k", 10 * kKiB));
    cluster.Settle();
    EXPECT_EQ(nodes.b.UsedBytes(), nodes.a.UsedBytes());
  });
}

TEST(Migration, MoveLeavesNothingBehind) {
  Simulated(2, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    PutOn(nodes.b, "k", "a-segment");
    ASSERT_TRUE(Migrate(nodes.a.core(), Order("k", true, {"c-segment"}), nodes.a.Deadline()).ok());
    EXPECT_EQ(Owners(nodes.b, "k"), (std::set<std::string>{"c:1"}));
    EXPECT_EQ(nodes.b.Get("k").value(), ValueOf("k", 10 * kKiB));
    cluster.Settle();
    EXPECT_EQ(nodes.a.UsedBytes(), 0u);
    EXPECT_GT(nodes.c.UsedBytes(), 0u);
  });
}

TEST(Migration, AnExecutorWithoutAReplicaReadsItFromAnother) {
  Simulated(3, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    PutOn(nodes.a, "k", "a-segment", 0, true);
    ASSERT_TRUE(Migrate(nodes.b.core(), Order("k", true, {"b-segment"}), nodes.b.Deadline()).ok());
    EXPECT_EQ(Owners(nodes.c, "k"), (std::set<std::string>{"b:1"}));
    EXPECT_EQ(nodes.c.Get("k").value(), ValueOf("k", 10 * kKiB));
    EXPECT_TRUE(nodes.c.Find("k")->soft_pin);
  });
}

TEST(Migration, DoneTwiceItChangesNothing) {
  Simulated(4, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    for (const bool move : {false, true}) {
      const std::string key = move ? "moved" : "copied";
      PutOn(nodes.a, key, "a-segment");
      const auto order = Order(key, move, {"b-segment"});
      EXPECT_FALSE(IsMigrated(nodes.c.core(), order, nodes.c.Deadline()).value());
      ASSERT_TRUE(Migrate(nodes.a.core(), order, nodes.a.Deadline()).ok());
      const Version version = nodes.a.Find(key)->version;
      EXPECT_TRUE(Migrate(nodes.a.core(), order, nodes.a.Deadline()).ok());
      EXPECT_TRUE(Migrate(nodes.c.core(), order, nodes.c.Deadline()).ok());
      EXPECT_TRUE(IsMigrated(nodes.c.core(), order, nodes.c.Deadline()).value());
      EXPECT_EQ(nodes.a.Find(key)->version, version);
    }
  });
}

TEST(Migration, AMoveWhoseTargetHoldsTheValueDropsTheSource) {
  Simulated(5, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    PutOn(nodes.a, "k", "a-segment");
    ASSERT_TRUE(Migrate(nodes.a.core(), Order("k", false, {"b-segment"}), nodes.a.Deadline()).ok());
    ASSERT_TRUE(Migrate(nodes.a.core(), Order("k", true, {"b-segment"}), nodes.a.Deadline()).ok());
    EXPECT_EQ(Owners(nodes.c, "k"), (std::set<std::string>{"b:1"}));
    EXPECT_EQ(nodes.c.Get("k").value(), ValueOf("k", 10 * kKiB));
  });
}

TEST(Migration, AllTargetsOrNone) {
  Simulated(6, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    TestNode& small = cluster.Start("small", 8 * kKiB);
    PutOn(nodes.b, "k", "a-segment");
    const auto order = Order("k", false, {"b-segment", "small-segment"});
    const Status status = Migrate(nodes.a.core(), order, nodes.a.Deadline());
    EXPECT_EQ(status.code(), ErrorCode::kNoSpace) << status.error().ToString();
    EXPECT_EQ(Owners(nodes.c, "k"), (std::set<std::string>{"a:1"}));
    cluster.Settle();
    EXPECT_EQ(nodes.b.UsedBytes(), 0u);
    EXPECT_EQ(small.UsedBytes(), 0u);
  });
}

TEST(Migration, RefusesWhatCannotBe) {
  Simulated(7, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    PutOn(nodes.a, "k", "a-segment");
    const auto code = [&](const MigrationOrder& order) {
      return Migrate(nodes.a.core(), order, nodes.a.Deadline()).code();
    };
    EXPECT_EQ(code(Order("absent", false, {"b-segment"})), ErrorCode::kNotFound);
    EXPECT_EQ(code(Order("k", false, {"nowhere"})), ErrorCode::kNotFound);
    EXPECT_EQ(code(Order("k", false, {"c-segment"}, "b-segment")), ErrorCode::kNotFound);
    EXPECT_EQ(code(Order("", false, {"b-segment"})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order(std::string(kKeySizeMax + 1, 'k'), false, {"b-segment"})),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {std::string(kSegmentNameMax + 1, 's')})),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {""})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {"b-segment"}, "")), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {"a-segment"})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, {"b-segment", "b-segment"})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", true, {"b-segment", "c-segment"})), ErrorCode::kInvalidArgument);
    EXPECT_EQ(code(Order("k", false, std::vector<std::string>(17, "x"))),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(Owners(nodes.c, "k"), (std::set<std::string>{"a:1"}));
  });
}

TEST(Migration, ReplicasStayOnDistinctNodes) {
  Simulated(8, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    ASSERT_TRUE(nodes.a.node().ExpandMemory(64 * kKiB).ok());
    ASSERT_TRUE(nodes.b.node().ExpandMemory(64 * kKiB).ok());
    cluster.Settle();
    PutOn(nodes.c, "k", "a-segment");
    const auto code = [&](const MigrationOrder& order) {
      return Migrate(nodes.a.core(), order, nodes.a.Deadline()).code();
    };
    EXPECT_EQ(code(Order("k", false, {"a-segment-ext-1"})), ErrorCode::kInvalidState);
    EXPECT_EQ(code(Order("k", false, {"b-segment", "b-segment-ext-1"})), ErrorCode::kInvalidState);
    EXPECT_EQ(code(Order("k", true, {"a-segment-ext-1"})), ErrorCode::kOk);
    EXPECT_EQ(nodes.c.Find("k")->replicas[0].segment, 1u);
    EXPECT_EQ(nodes.c.Get("k").value(), ValueOf("k", 10 * kKiB));
  });
}

// Runs `act` once `executor`, which has no replica, is about to read the value from a: the plan is
// made by then, and nothing is written.
void BetweenPlanAndWrite(TestNode& executor, std::function<void()> act) {
  executor.transport.BeforeNext(static_cast<uint16_t>(MessageType::kGet), std::move(act));
}

void AwaitLeave(TestNode& leaver, TestNode& observer) {
  leaver.Close();
  ASSERT_TRUE(observer.core().membership.RefreshTo(0, observer.Deadline()));
}

TEST(Migration, GoesWhereItWasPlannedToWhoeverJoinsMeanwhile) {
  Simulated(9, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.b, "a:1");
    PutOn(nodes.a, key, "a-segment");
    BetweenPlanAndWrite(nodes.b, [&] { cluster.Start("0"); });
    const Status status =
        Migrate(nodes.b.core(), Order(key, true, {"c-segment"}), nodes.b.Deadline());
    EXPECT_TRUE(status.ok()) << status.error().ToString();
    EXPECT_EQ(nodes.b.core().view()->nodes().size(), 4u);
    EXPECT_EQ(Owners(nodes.b, key), (std::set<std::string>{"c:1"}));
    EXPECT_EQ(nodes.a.Get(key).value_or(""), ValueOf(key, 10 * kKiB));
  });
}

TEST(Migration, GoesWhereItWasPlannedToWhoeverLeavesMeanwhile) {
  Simulated(10, [](TestCluster& cluster) {
    TestNode& first = cluster.Start("0");
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.b, "a:1");
    PutOn(nodes.a, key, "a-segment");
    BetweenPlanAndWrite(nodes.b, [&] { AwaitLeave(first, nodes.b); });
    const Status status =
        Migrate(nodes.b.core(), Order(key, false, {"b-segment", "c-segment"}), nodes.b.Deadline());
    EXPECT_TRUE(status.ok()) << status.error().ToString();
    EXPECT_EQ(nodes.b.core().view()->nodes().size(), 3u);
    EXPECT_EQ(Owners(nodes.b, key), (std::set<std::string>{"a:1", "b:1", "c:1"}));
    EXPECT_EQ(nodes.c.Get(key).value_or(""), ValueOf(key, 10 * kKiB));
  });
}

TEST(Migration, ATargetThatLeavesMeanwhileIsNoTarget) {
  Simulated(11, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    TestNode& last = cluster.Start("d");
    const std::string key = TestCluster::KeyAt(nodes.b, "a:1");
    PutOn(nodes.a, key, "a-segment");
    BetweenPlanAndWrite(nodes.b, [&] { AwaitLeave(nodes.c, nodes.b); });
    const auto order = Order(key, false, {"c-segment", "d-segment"});
    const Status status = Migrate(nodes.b.core(), order, nodes.b.Deadline());
    EXPECT_EQ(status.code(), ErrorCode::kNotFound) << status.error().ToString();
    EXPECT_EQ(Owners(nodes.b, key), (std::set<std::string>{"a:1"}));
    cluster.Settle();
    EXPECT_EQ(last.UsedBytes(), 0u);
  });
}

TEST(Migration, AConcurrentOverwriteOrRemovalWins) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      ThreeNodes nodes(cluster);
      PutOn(nodes.a, "overwritten", "a-segment");
      PutOn(nodes.a, "removed", "a-segment");
      auto writer = cluster.runtime().Spawn("writer", [&] {
        EXPECT_TRUE(nodes.c.Remove("removed").ok());
        PutOn(nodes.c, "overwritten", "a-segment", 1);
      });
      for (const char* key : {"overwritten", "removed"}) {
        (void)Migrate(nodes.a.core(), Order(key, true, {"b-segment"}), nodes.a.Deadline());
      }
      writer->Join();
      EXPECT_EQ(nodes.b.Get("overwritten").value(), ValueOf("overwritten", 10 * kKiB, 1));
      EXPECT_EQ(nodes.b.Get("removed").code(), ErrorCode::kNotFound);
    });
  }
}

}  // namespace
}  // namespace mooncake::node

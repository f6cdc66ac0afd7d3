// What happens to slots, and so to keys, when views change.
#include "node/takeover.h"

#include <gtest/gtest.h>

#include "node/authority.h"
#include "node/control_calls.h"
#include "node/query_op.h"
#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

std::vector<std::string> Keys(int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back("key-" + std::to_string(i));
  return keys;
}

// Which put's value a read returned, or why there was none.
std::string Seen(TestNode& reader, const std::string& key) {
  const auto value = reader.Get(key);
  if (!value.ok()) return value.error().ToString();
  for (int version = 0; version < 10; ++version) {
    if (*value == ValueOf(key, 100, version)) return "version " + std::to_string(version);
  }
  return "wrong bytes";
}

void ExpectAll(TestNode& reader, const std::vector<std::string>& keys, int version = 0) {
  for (const std::string& key : keys) {
    EXPECT_EQ(Seen(reader, key), "version " + std::to_string(version))
        << key << " read on " << reader.name();
  }
}

void PutAll(TestNode& writer, const std::vector<std::string>& keys, uint64_t version = 0,
            const ReplicateConfig* policy = nullptr) {
  for (const std::string& key : keys) {
    const Status status = writer.Put(key, ValueOf(key, 100, version), policy);
    EXPECT_TRUE(status.ok()) << key << (status.ok() ? "" : status.error().ToString());
  }
}

TEST(Takeover, AJoiningNodePullsTheRoutesOfItsSlots) {
  Simulated(1, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    const auto keys = Keys(200);
    PutAll(a, keys);
    ASSERT_TRUE(a.Remove(keys[0]).ok());
    auto& b = cluster.Start("b");
    EXPECT_EQ(b.Get(keys[0]).code(), ErrorCode::kNotFound);
    const std::vector<std::string> rest(keys.begin() + 1, keys.end());
    ExpectAll(b, rest);
    ExpectAll(a, rest);
    PutAll(b, rest, 1);
    ExpectAll(a, rest, 1);
  });
}

TEST(Takeover, ALeavingNodeHandsItsSlotsOver) {
  Simulated(2, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const auto keys = TestCluster::KeysAt(a, "b:1", 50);
    const ReplicateConfig local{.prefer_local = true};
    PutAll(a, keys, 0, &local);  // Bytes on a, routes on b.
    b.Close();
    cluster.Settle();
    ExpectAll(a, keys);
  });
}

TEST(Takeover, RoutesOfADeadAuthorityAreRebuiltFromTheBytes) {
  Simulated(3, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    const auto keys = TestCluster::KeysAt(a, "b:1", 50);
    const ReplicateConfig local{.prefer_local = true};
    PutAll(a, keys, 0, &local);
    PutAll(c, keys, 1, &local);  // The newest.
    cluster.Settle();
    cluster.Kill(b);
    cluster.runtime().SleepMs(15'000);
    ExpectAll(a, keys, 1);
    ExpectAll(c, keys, 1);
  });
}

TEST(Takeover, CallersAreCarriedOverTheDeathOfAnAuthority) {
  Simulated(4, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& client = cluster.Start("client", 0);
    const auto keys = TestCluster::KeysAt(client, "b:1", 5);
    const ReplicateConfig on_a{.preferred_storage_owners = {"a"}, .prefer_local = false};
    PutAll(client, keys, 0, &on_a);
    cluster.Settle();
    cluster.Kill(b);
    ExpectAll(client, keys);  // No pause: the calls themselves wait for the takeover.
    PutAll(client, keys, 1);
    ExpectAll(a, keys, 1);
  });
}

TEST(Takeover, MirrorsFillInForAnOwnerThatDoesNotAnswer) {
  Simulated(5, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    node::NodeConfig owner = TestCluster::Config("c");
    owner.labels["route"] = "false";
    auto& c = cluster.Start(owner);
    std::vector<std::string> keys;  // Of b, with a as the next rank.
    for (const std::string& key : TestCluster::KeysAt(a, "b:1", 60)) {
      const auto view = a.core().view();
      const auto ranks = view->RanksOf(a.Ref(key).hash);
      if (view->node(ranks[1]).lease.id.stable_id == "a") keys.push_back(key);
    }
    ASSERT_FALSE(keys.empty());
    const ReplicateConfig local{.prefer_local = true};
    PutAll(c, keys, 0, &local);
    cluster.Settle();
    cluster.network().Block(a.node().endpoint(), c.node().endpoint(), true);
    cluster.Kill(b);
    cluster.runtime().SleepMs(14'000);
    cluster.network().Block(a.node().endpoint(), c.node().endpoint(), false);
    cluster.runtime().SleepMs(6'000);
    ExpectAll(a, keys);
  });
}

// It is not believed, and what its node has served since is found all the same.
TEST(Takeover, ATruthOfATimeToComeLeavesItsSlotToTheOwners) {
  Simulated(6, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    std::vector<std::string> keys = TestCluster::KeysAt(a, "a:1", 60);
    PutAll(a, keys);
    cluster.Settle();
    std::vector<routing::Slot> slots;
    for (const std::string& key : keys) slots.push_back(b.core().routes.SlotOf(b.Ref(key)));
    const uint64_t revision = b.core().view()->revision();
    slots = b.core().routes.BeginTakeover(slots, revision);
    b.core().routes.EndTakeover(slots, revision + 48 * 3'600'000);
    PutAll(b, keys, 1);
    auto& c = cluster.Start("c");
    std::erase_if(keys, [&](const std::string& key) {
      return !c.core().routes.Serves(c.core().routes.SlotOf(c.Ref(key)));
    });
    ASSERT_FALSE(keys.empty());
    ExpectAll(c, keys, 1);
  });
}

TEST(Takeover, ASuspicionThatPassesLeavesEverySlotServed) {
  for (uint64_t seed = 10; seed < 16; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      auto& a = cluster.Start("a");
      auto& b = cluster.Start("b");
      auto& client = cluster.Start("client", 0);
      const auto keys = Keys(40);
      PutAll(client, keys);
      for (int flap = 0; flap < 3; ++flap) {
        ASSERT_TRUE(client.metadata.ReportSuspect({"a", 1}).ok());
        cluster.runtime().SleepMs(cluster.runtime().Random() % 1'500);
        ASSERT_TRUE(a.node().Heartbeat().ok());
        cluster.runtime().SleepMs(cluster.runtime().Random() % 1'500);
      }
      cluster.runtime().SleepMs(3'000);
      ExpectAll(client, keys);
      PutAll(b, keys, 1);
      ExpectAll(client, keys, 1);
      PutAll(a, keys, 2);
      ExpectAll(b, keys, 2);
    });
  }
}

TEST(Takeover, WritesThatASuccessorTookSurviveTheReturnOfTheSuspect) {
  Simulated(31, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& client = cluster.Start("client", 0);
    const auto keys = TestCluster::KeysAt(client, "a:1", 10);
    PutAll(client, keys);
    cluster.network().SetPaused(a.node().endpoint(), true);
    a.metadata.SetFault(MetadataFault::kDown);
    PutAll(client, keys, 1);  // Waits for the stall, then for b.
    ExpectAll(b, keys, 1);
    a.metadata.SetFault(MetadataFault::kNone);
    cluster.network().SetPaused(a.node().endpoint(), false);
    cluster.runtime().SleepMs(10'000);
    ExpectAll(client, keys, 1);
    ExpectAll(a, keys, 1);
  });
}

TEST(Takeover, ATruthOverrulesOldBytesWhereTheLastAuthorityIsSilent) {
  Simulated(32, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const auto keys = TestCluster::KeysAt(a, "a:1", 20);
    const ReplicateConfig local{.prefer_local = true};
    PutAll(b, keys, 0, &local);  // Bytes on b, routes on a.
    cluster.Settle();
    cluster.network().Block(a.node().endpoint(), b.node().endpoint(), true);
    for (const std::string& key : keys) ASSERT_TRUE(a.Remove(key).ok());  // b does not hear it.
    // a is given up for a moment, and comes back while b cannot be asked: what a knew itself
    // counts.
    ASSERT_TRUE(b.metadata.ReportSuspect({"a", 1}).ok());
    ASSERT_TRUE(a.node().Heartbeat().ok());
    cluster.runtime().SleepMs(5'000);
    for (const std::string& key : keys) EXPECT_EQ(Seen(a, key), NotFound(key).ToString());
    cluster.network().Block(a.node().endpoint(), b.node().endpoint(), false);
    cluster.runtime().SleepMs(10'000);
    for (const std::string& key : keys) EXPECT_EQ(Seen(b, key), NotFound(key).ToString());
  });
}

TEST(Takeover, FalseAlarmsCostNoInventory) {
  Simulated(33, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    PutAll(a, Keys(60));
    for (TestNode* node : {&a, &b, &c}) node->transport.Take();
    for (int alarm = 0; alarm < 4; ++alarm) {
      ASSERT_TRUE(a.metadata.ReportSuspect({"b", 1}).ok());
      cluster.runtime().SleepMs(cluster.runtime().Random() % 2'500);
      ASSERT_TRUE(b.node().Heartbeat().ok());
      cluster.runtime().SleepMs(cluster.runtime().Random() % 2'500);
    }
    ExpectAll(c, Keys(60));
    for (TestNode* node : {&a, &b, &c}) {
      const auto inventory = static_cast<uint16_t>(MessageType::kInventory);
      EXPECT_EQ(node->transport.counts().messages_of[inventory], 0u) << node->name();
    }
  });
}

TEST(Takeover, AnAuthorityOfAnOlderViewLeavesTheSlotsToTheNewerOne) {
  Simulated(34, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const std::string key = TestCluster::KeyAt(a, "a:1");
    ASSERT_TRUE(a.Put(key, "v").ok());
    const routing::Slot slots[] = {a.core().routes.SlotOf(a.Ref(key))};
    v1::PullRequest late;  // As of before a came.
    late.mutable_origin()->set_node("old:1");
    late.mutable_origin()->set_revision(1);
    late.add_slots(slots[0]);
    v1::PullReply reply;
    bool valid = true;
    ServePull(a.core(), late, &reply, &valid);
    ASSERT_TRUE(valid);
    EXPECT_EQ(reply.kept_size(), 1);
    EXPECT_EQ(reply.served_size(), 0);
    EXPECT_TRUE(a.core().routes.Serves(slots[0]));
    EXPECT_EQ(b.Get(key).value_or(""), "v");
  });
}

TEST(RemoveScope, WaitsForSlotsThatNobodyServesAtTheMoment) {
  Simulated(35, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const auto keys = Keys(40);
    PutAll(a, keys);
    const std::string moving = TestCluster::KeyAt(a, "b:1", 3);
    const routing::Slot slots[] = {a.core().routes.SlotOf(a.Ref(moving))};
    b.core().routes.Lose(slots);
    uint64_t removed = 0;
    EXPECT_EQ(RemoveScopeHere(b.core(), b.Ref("k").scope, &removed), 0u);
    auto late = cluster.runtime().Spawn("late", [&] {
      cluster.runtime().SleepMs(700);
      b.core().membership.ReapplySoon();  // Takes it back.
    });
    const uint64_t start_ms = cluster.runtime().NowMs();
    const auto rest = RemoveScope(a.core(), {}, a.Deadline());
    ASSERT_TRUE(rest.ok()) << rest.error().ToString();
    EXPECT_EQ(*rest + removed, keys.size());
    EXPECT_GE(cluster.runtime().NowMs() - start_ms, 700u);
    late->Join();
  });
}

TEST(Takeover, AServiceThatCameBackEmptyLosesNoKey) {
  for (uint64_t seed = 40; seed < 44; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      auto& a = cluster.Start("a");
      auto& b = cluster.Start("b");
      auto& c = cluster.Start("c");
      const auto keys = Keys(60);
      const ReplicateConfig local{.prefer_local = true};
      PutAll(a, keys, 0, &local);
      cluster.Settle();
      cluster.state().Forget();
      cluster.runtime().SleepMs(20'000);
      ExpectAll(b, keys);
      ExpectAll(c, keys);
    });
  }
}

// A node with values that the service forgets, and another one that is first there meanwhile. The
// old one is back, but does not answer at first. That alone is no reason to suspect it.
struct Return {
  explicit Return(TestCluster& cluster) : old(cluster.Start("old")) {
    const ReplicateConfig local{.prefer_local = true};
    PutAll(old, keys, 0, &local);
    old.metadata.SetFault(MetadataFault::kDown);
    cluster.runtime().SleepMs(TestCluster::Config("old").membership.lease_ttl_ms + 1'000);
    stranger = &cluster.Start("stranger");
    cluster.network().SetPaused(old.node().endpoint(), true);
    old.metadata.SetFault(MetadataFault::kNone);
  }
  uint64_t InventoriesAsked() {
    const auto counts = stranger->transport.counts();
    const auto found = counts.messages_of.find(static_cast<uint16_t>(MessageType::kInventory));
    return found == counts.messages_of.end() ? 0 : found->second;
  }

  TestNode& old;
  TestNode* stranger = nullptr;
  const std::vector<std::string> keys = Keys(60);
};
constexpr uint64_t kLongStallMs = 20'000;

TEST(Takeover, WhoDoesNotTellWhatItHasWhenItComesBackIsAskedAgain) {
  for (uint64_t seed = 70; seed < 75; ++seed) {
    Simulated(
        seed,
        [](TestCluster& cluster) {
          Return scene(cluster);
          cluster.runtime().SleepMs(4'500);
          const NodeId old = scene.old.core().membership.self();
          EXPECT_NE(scene.stranger->core().view()->Find(old), routing::kNoNode);
          EXPECT_FALSE(scene.stranger->core().membership.Suspected(old));
          cluster.network().SetPaused(scene.old.node().endpoint(), false);
          cluster.runtime().SleepMs(60'000);  // It is of the new era, and has looked at all.
          EXPECT_EQ(scene.old.core().membership.era(), scene.stranger->core().membership.era());
          ExpectAll(*scene.stranger, scene.keys);
          ExpectAll(scene.old, scene.keys);
        },
        kLongStallMs);
  }
}

TEST(Takeover, WhoIsSilentForLongIsAskedNowAndThenAndCostsNoSlot) {
  Simulated(
      76,
      [](TestCluster& cluster) {
        Return scene(cluster);
        cluster.runtime().SleepMs(4'500);
        const uint64_t asked = scene.InventoriesAsked();
        const std::string own = TestCluster::KeyAt(*scene.stranger, "stranger:1");
        RouteTable& routes = scene.stranger->core().routes;
        const routing::Slot slot = routes.SlotOf(scene.stranger->Ref(own));
        for (int i = 0; i < 60; ++i) {
          cluster.runtime().SleepMs(100);
          EXPECT_TRUE(routes.Serves(slot));
        }
        EXPECT_GE(scene.InventoriesAsked(), asked + 1);
        EXPECT_LE(scene.InventoriesAsked(), asked + 3);
        cluster.network().SetPaused(scene.old.node().endpoint(), false);
      },
      kLongStallMs);
}

TEST(Takeover, AKilledOwnerTakesItsRoutesWithItAndFreesNothingElse) {
  Simulated(60, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const ReplicateConfig local{.prefer_local = true};
    const auto keys = TestCluster::KeysAt(a, "a:1", 40);
    const std::vector<std::string> on_a(keys.begin(), keys.begin() + 20);
    const std::vector<std::string> on_b(keys.begin() + 20, keys.end());
    PutAll(a, on_a, 0, &local);
    PutAll(b, on_b, 0, &local);
    cluster.Kill(b);
    cluster.runtime().SleepMs(15'000);
    ExpectAll(a, on_a);
    for (const std::string& key : on_b) EXPECT_EQ(a.Get(key).code(), ErrorCode::kNotFound);
    EXPECT_EQ(a.UsedBytes(), 20u * 128);
  });
}

// The writer lives on, and its longest request would be over after 23 s only.
TEST(Takeover, AWriterThatCannotPublishGivesTheSpaceBackWithinALease) {
  Simulated(62, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    const auto keys = TestCluster::KeysAt(b, "c:1", 5);
    for (TestNode* node : {&a, &b}) node->metadata.SetFault(MetadataFault::kDown);
    cluster.Kill(c);
    const ReplicateConfig both{.replica_num = 2, .preferred_storage_owners = {"a", "b"}};
    for (const std::string& key : keys) EXPECT_FALSE(b.Put(key, "v", &both).ok());
    EXPECT_GT(a.UsedBytes(), 0u);
    EXPECT_GT(b.UsedBytes(), 0u);
    for (TestNode* node : {&a, &b}) node->metadata.SetFault(MetadataFault::kNone);
    cluster.runtime().SleepMs(TestCluster::Config("a").membership.lease_ttl_ms);
    EXPECT_EQ(a.UsedBytes(), 0u);
    EXPECT_EQ(b.UsedBytes(), 0u);
  });
}

TEST(Takeover, AWriterThatDiesBeforeItsPublishGivesTheSpaceBack) {
  Simulated(61, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    const auto keys = TestCluster::KeysAt(b, "b:1", 5);
    cluster.network().Block(a.node().endpoint(), b.node().endpoint(), true);
    const ReplicateConfig on_a{.preferred_storage_owners = {"a"}, .prefer_local = false};
    for (const std::string& key : keys) EXPECT_TRUE(b.Put(key, "v", &on_a).ok());
    EXPECT_EQ(b.Get(keys[0]).value_or(""), "v");
    cluster.Kill(b);
    cluster.runtime().SleepMs(60'000);
    EXPECT_EQ(a.UsedBytes(), 0u);
    EXPECT_EQ(a.Get(keys[0]).code(), ErrorCode::kNotFound);
  });
}

}  // namespace
}  // namespace mooncake::node

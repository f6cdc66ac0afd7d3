// What becomes of leases when the metadata service loses them: who may repair which, and who may
// end them.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/test_cluster.h"
#include "world.h"

namespace mooncake::node {
namespace {

using testing::FaultyMetadata;
using testing::MetadataFault;
using testing::TestCluster;
using testing::TestNode;

std::vector<LeaseRecord> Leases(World& world) {
  return world.service.ReadChanges(0).value_or({}).leases;
}

TEST(LeaseRepair, WhoLostItsNameDoesNotEndTheLeaseOfWhoHasItNow) {
  InWorld(1, [](World& world) {
    FaultyMetadata own(world.service, world.runtime);
    auto first = world.Started("a", own);
    own.SetFault(MetadataFault::kDown);
    world.state->Forget();
    auto second = world.Started("a");
    ASSERT_EQ(second->self(), first->self());
    own.SetFault(MetadataFault::kNone);
    EXPECT_EQ(first->HeartbeatNow().code(), ErrorCode::kStaleEpoch);
    EXPECT_TRUE(first->superseded());
    EXPECT_TRUE(first->Leave().ok());
    ASSERT_EQ(Leases(world).size(), 1u);
    EXPECT_EQ(Leases(world)[0].instance, second->instance());
    EXPECT_TRUE(second->HeartbeatNow().ok());
    EXPECT_TRUE(second->Leave().ok());
    EXPECT_TRUE(Leases(world).empty());
  });
}

// The standby of an upgrade hears first that the service came back empty.
TEST(LeaseRepair, AStandbyDoesNotDisinheritThePredecessorThatItStandsBeside) {
  for (uint64_t seed = 2; seed < 8; ++seed) {
    InWorld(seed, [](World& world) {
      FaultyMetadata own(world.service, world.runtime);
      auto other = world.Started("b");
      auto first = world.Started("a", own);
      auto standby = world.Make();
      ASSERT_TRUE(world.Join(*standby, "a", HolderAnswer::kAlive, true).ok());
      standby->Start([](const ViewPtr&, const ViewPtr&) {});
      ASSERT_TRUE(other->RefreshTo(0, world.runtime.NowMs() + 5'000));
      ASSERT_EQ(other->view()->nodes().size(), 3u);
      own.SetFault(MetadataFault::kDown);
      world.state->Forget();
      world.runtime.SleepMs(World::Options().lease_ttl_ms / 2);
      ASSERT_EQ(Leases(world).size(), 2u);
      EXPECT_NE(other->view()->Find(first->self()), routing::kNoNode) << "its values went with it";
      own.SetFault(MetadataFault::kNone);
      world.runtime.SleepMs(2'000);
      EXPECT_EQ(Leases(world).size(), 3u);
      EXPECT_FALSE(first->superseded());
      world.runtime.SleepMs(2 * World::Options().lease_ttl_ms);
      for (const Membership* member : {other.get(), first.get(), standby.get()}) {
        EXPECT_EQ(member->view()->nodes().size(), 3u);
      }
    });
  }
}

TEST(LeaseRepair, AStandbyThatHasTakenOverDisinheritsItsPredecessor) {
  InWorld(8, [](World& world) {
    FaultyMetadata own(world.service, world.runtime);
    auto other = world.Started("b");
    auto first = world.Started("a", own);
    auto standby = world.Make();
    ASSERT_TRUE(world.Join(*standby, "a", HolderAnswer::kAlive, true).ok());
    standby->Start([](const ViewPtr&, const ViewPtr&) {});
    EXPECT_EQ(standby->record().beside, 1u);
    ASSERT_TRUE(
        standby->Update([](LeaseRecord& record) { record.state = NodeState::kActive; }).ok());
    EXPECT_EQ(standby->record().beside, 0u);
    ASSERT_TRUE(other->RefreshTo(0, world.runtime.NowMs() + 5'000));
    own.SetFault(MetadataFault::kDown);
    world.state->Forget();
    world.runtime.SleepMs(World::Options().lease_ttl_ms / 2);
    ASSERT_EQ(Leases(world).size(), 2u);
    own.SetFault(MetadataFault::kNone);
    world.runtime.SleepMs(World::Options().lease_ttl_ms);
    EXPECT_EQ(Leases(world).size(), 2u);
    EXPECT_TRUE(first->superseded());
    EXPECT_EQ(other->view()->Find(first->self()), routing::kNoNode);
  });
}

// The service has forgotten it, so it cannot be marked there; but its slots need not wait for the
// end of its lease.
TEST(LeaseRepair, WhoIsGoneWhenTheServiceComesBackEmptyIsSucceededAtOnce) {
  testing::Simulated(30, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    TestNode& c = cluster.Start("c");
    const ReplicateConfig local{.prefer_local = true};
    const auto keys = TestCluster::KeysAt(a, "c:1", 20);
    for (const std::string& key : keys) ASSERT_TRUE(a.Put(key, "v", &local).ok());
    cluster.Settle();
    for (TestNode* node : {&a, &b, &c}) node->metadata.SetFault(MetadataFault::kDown);
    cluster.network().SetDown(c.node().endpoint(), true);
    cluster.runtime().SleepMs(100);
    cluster.state().Forget();
    for (TestNode* node : {&a, &b}) node->metadata.SetFault(MetadataFault::kNone);
    (void)a.Get(keys[0], 1'000);
    cluster.runtime().SleepMs(3'000);
    for (TestNode* node : {&a, &b}) {
      for (const std::string& key : keys) EXPECT_EQ(node->Get(key, 1'000).value_or(""), "v") << key;
    }
  });
}

// A heartbeat that was on its way when the state changed, and comes after that.
TEST(LeaseRepair, AnOlderRenewalThatComesLateIsSoonMadeGood) {
  int overtaken = 0;
  for (uint64_t seed = 10; seed < 20; ++seed) {
    InWorld(seed, [&](World& world) {
      FaultyMetadata own(world.service, world.runtime);
      auto member = world.Started("a", own);
      const auto state = [&] { return Leases(world)[0].state; };
      own.FailNext(1, MetadataFault::kSlow);
      auto late = world.runtime.Spawn("late", [&] { EXPECT_TRUE(member->HeartbeatNow().ok()); });
      world.runtime.SleepMs(10);
      ASSERT_TRUE(
          member->Update([](LeaseRecord& record) { record.state = NodeState::kDraining; }).ok());
      ASSERT_EQ(state(), NodeState::kDraining);
      late->Join();
      overtaken += state() == NodeState::kActive;
      world.runtime.SleepMs(1'000);
      EXPECT_EQ(state(), NodeState::kDraining);
    });
  }
  EXPECT_GT(overtaken, 0);
}

using testing::Simulated;
using testing::TestCluster;

// Its slots may be somebody else's by the view that does not name it.
TEST(LeaseRepair, AMemberWhoseLeaseIsOverRenewsItAtOnceAndKnowsThatItWasAway) {
  constexpr uint64_t kPollMs = 1'000;
  constexpr uint64_t kSpreadMs = 500;
  int left_out = 0;
  for (uint64_t seed = 10; seed < 20; ++seed) {
    InWorld(seed, [&](World& world) {
      auto other = world.Started("b");
      auto member = world.Make();
      ASSERT_TRUE(world.Join(*member, "a", HolderAnswer::kGone).ok());
      member->Start([&](const ViewPtr&, const ViewPtr& after) {
        if (after->Find(member->self()) != routing::kNoNode) return;
        ++left_out;
        EXPECT_TRUE(member->TakeLeaseLoss());
      });
      ASSERT_TRUE(world.service.Release(member->self(), 0).ok());
      world.runtime.SleepMs(kPollMs + kSpreadMs + 100);
      EXPECT_EQ(Leases(world).size(), 2u) << "seed " << seed;
    });
  }
  EXPECT_GT(left_out, 0);
}

TEST(LeaseRepair, AnUpgradeGoesOnAfterTheServiceLostEverything) {
  Simulated(9, [](TestCluster& cluster) {
    auto& old = cluster.Start("a");
    auto& other = cluster.Start("b");
    std::vector<std::string> keys;
    for (int i = 0; i < 40; ++i) keys.push_back("k" + std::to_string(i));
    for (const Status& put : other.PutAll(keys, 1'000)) ASSERT_TRUE(put.ok());
    const auto readable = [&] {
      const auto got = other.GetAll(keys, 1'000);
      return std::count_if(got.begin(), got.end(), [](const auto& read) { return read.ok(); });
    };
    const uint64_t used = old.UsedBytes();
    ASSERT_GT(used, 0u);
    NodeConfig config = TestCluster::Config("a");
    config.listen_host = "a-again";
    config.initial_state = NodeState::kStandby;
    config.succeeds = true;
    auto& successor = cluster.Start(config);
    ASSERT_EQ(successor.name(), "a:2");
    old.metadata.SetFault(MetadataFault::kDown);
    cluster.state().Forget();
    cluster.runtime().SleepMs(5'000);
    EXPECT_EQ(readable(), 40);
    old.metadata.SetFault(MetadataFault::kNone);
    cluster.runtime().SleepMs(30'000);
    EXPECT_EQ(readable(), 40);
    const uint64_t deadline_ms = cluster.runtime().NowMs() + 30'000;
    const auto planned = old.node().PlanHandoff(std::nullopt, deadline_ms);
    ASSERT_TRUE(planned.ok()) << planned.error().ToString();
    const auto drained = old.node().EvacuateAll("", deadline_ms);
    ASSERT_TRUE(drained.ok()) << drained.error().ToString();
    old.Close();
    cluster.runtime().SleepMs(2'000);
    EXPECT_EQ(readable(), 40);
    EXPECT_GE(successor.UsedBytes(), used);
  });
}

}  // namespace
}  // namespace mooncake::node

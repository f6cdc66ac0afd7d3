#include "node/membership.h"

#include <gtest/gtest.h>

#include "support/test_cluster.h"
#include "world.h"

namespace mooncake::node {
namespace {

using testing::MetadataFault;

size_t Members(const Membership& member) { return member.view()->nodes().size(); }

TEST(Join, GivesAnEpochAndAViewWithThisNode) {
  InWorld(1, [](World& world) {
    auto member = world.Make();
    ASSERT_TRUE(world.Join(*member, "a", HolderAnswer::kAlive).ok());
    EXPECT_EQ(member->self(), (NodeId{"a", 1}));
    EXPECT_EQ(member->self_name(), "a:1");
    EXPECT_NE(member->view()->Find({"a", 1}), routing::kNoNode);
    EXPECT_TRUE(world.asked.empty());
  });
}

TEST(Join, ALiveHolderIsAnErrorAtOnceThatNamesIt) {
  InWorld(2, [](World& world) {
    auto holder = world.Started("a");
    auto second = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    const Status status = world.Join(*second, "a", HolderAnswer::kAlive);
    EXPECT_EQ(status.code(), ErrorCode::kConflict);
    EXPECT_NE(status.error().context.find("a:1"), std::string::npos);
    EXPECT_EQ(world.runtime.NowMs(), start_ms);
    EXPECT_EQ(second->self_name(), "");
  });
}

TEST(Join, AHolderThatIsGoneIsReplacedAtOnceByTheNextEpoch) {
  InWorld(3, [](World& world) {
    auto holder = world.Make();
    ASSERT_TRUE(world.Join(*holder, "a", HolderAnswer::kGone).ok());
    auto second = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    ASSERT_TRUE(world.Join(*second, "a", HolderAnswer::kGone).ok());
    EXPECT_EQ(world.runtime.NowMs(), start_ms);
    EXPECT_EQ(second->self(), (NodeId{"a", 2}));
    EXPECT_EQ(Members(*second), 1u);
    EXPECT_EQ(world.asked, (std::vector<NodeId>{{"a", 1}}));
  });
}

TEST(Join, ASilentHolderIsWaitedForAtMostOneLease) {
  InWorld(4, [](World& world) {
    auto holder = world.Make();
    ASSERT_TRUE(world.Join(*holder, "a", HolderAnswer::kGone).ok());
    auto second = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    ASSERT_TRUE(world.Join(*second, "a", HolderAnswer::kSilent).ok());
    EXPECT_GT(world.runtime.NowMs() - start_ms, 1'000u);
    EXPECT_LE(world.runtime.NowMs() - start_ms, World::Options().lease_ttl_ms + 1'000);
    EXPECT_EQ(second->self(), (NodeId{"a", 2}));
  });
}

// By default setup's own limit is shorter than a lease.
TEST(Join, ASilentHolderIsWaitedForOneLeaseAlsoBeyondTheDeadline) {
  InWorld(47, [](World& world) {
    const auto make = [&] {
      return std::make_unique<Membership>(MembershipOptions(), world.runtime, world.metadata,
                                          world.metrics);
    };
    constexpr uint64_t kLimitMs = 20'000;
    ASSERT_GT(MembershipOptions().lease_ttl_ms, kLimitMs);
    auto holder = make();
    ASSERT_TRUE(world.Join(*holder, "a", HolderAnswer::kGone).ok());
    auto second = make();
    const uint64_t start_ms = world.runtime.NowMs();
    // That the service is away for a moment meanwhile, when the limit has passed, ends nothing.
    auto outage = world.runtime.Spawn("outage", [&] {
      world.runtime.SleepMs(kLimitMs + 2'000);
      world.metadata.SetFault(MetadataFault::kDown);
      world.runtime.SleepMs(1'000);
      world.metadata.SetFault(MetadataFault::kNone);
    });
    ASSERT_TRUE(world.Join(*second, "a", HolderAnswer::kSilent, false, kLimitMs).ok());
    outage->Join();
    EXPECT_LE(world.runtime.NowMs() - start_ms, MembershipOptions().lease_ttl_ms + 1'000);
    EXPECT_EQ(second->self(), (NodeId{"a", 2}));
  });
}

TEST(Join, ASilentHolderThatRenewsOutlastsTheDeadlineAndOneLease) {
  InWorld(5, [](World& world) {
    auto holder = world.Started("a");
    for (const uint64_t limit_ms : {1'000, 15'000}) {
      auto second = world.Make();
      const uint64_t start_ms = world.runtime.NowMs();
      const Status status = world.Join(*second, "a", HolderAnswer::kSilent, false, limit_ms);
      EXPECT_EQ(status.code(), ErrorCode::kConflict);
      EXPECT_NE(status.error().context.find("does not answer"), std::string::npos);
      const uint64_t waited_ms = world.runtime.NowMs() - start_ms;
      const uint64_t lease_ms = World::Options().lease_ttl_ms;
      EXPECT_GE(waited_ms + 500, std::max(limit_ms, lease_ms));
      EXPECT_LE(waited_ms, std::max(limit_ms, lease_ms + 4'000));
    }
  });
}

TEST(Join, AStrangerAtTheHoldersAddressIsWaitedForUntilTheDeadline) {
  InWorld(48, [](World& world) {
    auto holder = world.Started("a");
    auto second = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    const Status status = world.Join(*second, "a", HolderAnswer::kStranger, false, 500);
    EXPECT_EQ(status.code(), ErrorCode::kConflict);
    EXPECT_LE(world.runtime.NowMs() - start_ms, 1'000u);
  });
}

TEST(Join, ASuccessorStandsBesideALiveHolder) {
  InWorld(6, [](World& world) {
    auto holder = world.Started("a");
    auto second = world.Make();
    ASSERT_TRUE(world.Join(*second, "a", HolderAnswer::kAlive, true).ok());
    EXPECT_EQ(second->self(), (NodeId{"a", 2}));
    EXPECT_EQ(Members(*second), 2u);
    ASSERT_TRUE(holder->HeartbeatNow().ok() ||
                holder->HeartbeatNow().code() == ErrorCode::kStaleEpoch);
  });
}

TEST(Join, WaitsForAMetadataServiceThatComesBackAndNoLonger) {
  InWorld(7, [](World& world) {
    world.metadata.SetFault(MetadataFault::kDown);
    auto member = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    EXPECT_EQ(world.Join(*member, "a", HolderAnswer::kGone, false, 5'000).code(),
              ErrorCode::kMetadata);
    EXPECT_LE(world.runtime.NowMs() - start_ms, 5'100u);
    world.metadata.SetFault(MetadataFault::kNone);
    world.metadata.FailNext(5, MetadataFault::kDown);
    EXPECT_TRUE(world.Join(*member, "a", HolderAnswer::kGone, false, 5'000).ok());
  });
}

TEST(Join, DoesNotWaitForAServiceThatRefusesTheCredentials) {
  InWorld(17, [](World& world) {
    world.metadata.SetFault(MetadataFault::kDenied);
    auto member = world.Make();
    const uint64_t start_ms = world.runtime.NowMs();
    EXPECT_EQ(world.Join(*member, "a", HolderAnswer::kGone).code(), ErrorCode::kMetadata);
    EXPECT_EQ(world.runtime.NowMs(), start_ms);
  });
}

TEST(Membership, AHeartbeatThatSaysUntilWhenSetsForHowLongAllRenew) {
  InWorld(18, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    // How long b sees a after the service has lost a's heartbeats.
    const auto lives_ms = [&] {
      world.runtime.SleepMs(20'000);
      EXPECT_EQ(Members(*b), 2u);
      a->Stop();
      const uint64_t start_ms = world.runtime.NowMs();
      while (Members(*b) == 2 && world.runtime.NowMs() < start_ms + 60'000) {
        world.runtime.SleepMs(100);
      }
      return world.runtime.NowMs() - start_ms;
    };
    ASSERT_TRUE(a->HeartbeatNow(30'000).ok());
    const uint64_t longer_ms = lives_ms();
    EXPECT_GE(longer_ms, 30'000u - World::Options().heartbeat_interval_ms);
    EXPECT_LE(longer_ms, 32'000u);
    a = world.Started("a");
    ASSERT_TRUE(a->HeartbeatNow(2'000).ok());  // Less than the interval.
    EXPECT_LE(lives_ms(), 4'000u);
  });
}

TEST(Membership, AHeartbeatWithANewLeaseIsOne) {
  InWorld(46, [](World& world) {
    auto a = world.Started("a");
    ASSERT_TRUE(a->HeartbeatNow(8'000).ok());
    world.runtime.SleepMs(1'500);  // The heartbeat thread has heard of it.
    EXPECT_GE(a->LeaseAgeMs(), 1'500u);
    world.runtime.SleepMs(2'000);
    EXPECT_LE(a->LeaseAgeMs(), 2'000u);  // And it goes on.
  });
}

TEST(Membership, ALeaseThatLapsesLeavesTheView) {
  InWorld(8, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Make();
    ASSERT_TRUE(world.Join(*b, "b", HolderAnswer::kGone).ok());  // Never renews.
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    EXPECT_EQ(Members(*a), 2u);
    world.runtime.SleepMs(World::Options().lease_ttl_ms + 2'000);
    EXPECT_EQ(Members(*a), 1u);
  });
}

TEST(Membership, TheLastViewStaysWhileTheServiceIsAway) {
  InWorld(9, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    for (MetadataFault fault : {MetadataFault::kDown, MetadataFault::kHung}) {
      world.metadata.SetFault(fault);
      world.runtime.SleepMs(60'000);
      EXPECT_EQ(Members(*a), 2u);
      EXPECT_FALSE(a->Frozen());
      world.metadata.SetFault(MetadataFault::kNone);
      world.runtime.SleepMs(10'000);
      EXPECT_EQ(Members(*a), 2u);
    }
  });
}

TEST(Membership, AServiceThatLostEverythingEmptiesNoView) {
  for (uint64_t seed = 10; seed < 16; ++seed) {
    InWorld(seed, [](World& world) {
      auto a = world.Started("a");
      auto b = world.Started("b");
      auto c = world.Started("c");
      size_t least = 3;
      for (auto* member : {a.get(), b.get(), c.get()}) {
        ASSERT_TRUE(member->RefreshTo(0, world.runtime.NowMs() + 5'000));
      }
      world.state->Forget();
      for (int i = 0; i < 300; ++i) {
        world.runtime.SleepMs(50);
        for (auto* member : {a.get(), b.get(), c.get()}) {
          least = std::min(least, Members(*member));
        }
      }
      EXPECT_EQ(least, 3u) << "a live member left somebody's view";
      EXPECT_EQ(world.service.ReadChanges(0)->leases.size(), 3u);
    });
  }
}

TEST(Membership, AMemberThatDiesWithTheServiceLeavesAfterOneLease) {
  InWorld(31, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    b->Stop();
    world.state->Forget();
    world.runtime.SleepMs(World::Options().lease_ttl_ms / 2);
    EXPECT_EQ(Members(*a), 2u);
    world.runtime.SleepMs(World::Options().lease_ttl_ms);
    EXPECT_EQ(Members(*a), 1u);
  });
}

TEST(Membership, ASuspectIsLeftAloneForTheQuarantineOrUntilItAnswers) {
  InWorld(32, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    b->Stop();  // Else its next heartbeat ends the suspicion.
    a->Suspect(b->self());
    EXPECT_TRUE(a->Suspected(b->self()));
    EXPECT_FALSE(b->Suspected(a->self()));
    a->Trust(b->self());
    EXPECT_FALSE(a->Suspected(b->self()));
    world.metadata.SetFault(MetadataFault::kDown);  // Else the mark that it sets counts.
    a->Suspect(b->self());
    world.runtime.SleepMs(World::Options().quarantine_ms - 100);
    EXPECT_TRUE(a->Suspected(b->self()));
    world.runtime.SleepMs(200);
    EXPECT_FALSE(a->Suspected(b->self()));
    a->Suspect(a->self());
    EXPECT_FALSE(a->Suspected(a->self()));
  });
}

TEST(Membership, ASuspectThatSendsNoHeartbeatIsLeftAloneAfterTheQuarantine) {
  InWorld(45, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    b->Stop();
    a->Suspect(b->self());
    world.runtime.SleepMs(World::Options().quarantine_ms + 100);
    EXPECT_TRUE(a->Suspected(b->self()));
    // What the service last said is old news by now: b may be well.
    world.metadata.SetFault(MetadataFault::kDown);
    world.runtime.SleepMs(4 * World::Options().poll_interval_ms);
    EXPECT_FALSE(a->Suspected(b->self()));
    world.metadata.SetFault(MetadataFault::kNone);
  });
}

TEST(Membership, EvidenceAboutANodeThatIsInNoViewIsNotKept) {
  InWorld(37, [](World& world) {
    auto a = world.Started("a");
    const uint64_t calls = world.metadata.calls();
    for (uint64_t epoch = 1; epoch < 100; ++epoch) {
      a->Suspect({"gone", epoch});
      EXPECT_FALSE(a->Suspected({"gone", epoch}));
    }
    world.runtime.SleepMs(1'500);
    EXPECT_LE(world.metadata.calls() - calls, 5u);
  });
}

TEST(Membership, LeasesThatLapsedWhileTheServiceWasAwayMayBeRenewedForOneLease) {
  for (uint64_t seed = 38; seed < 44; ++seed) {
    InWorld(seed, [](World& world) {
      auto a = world.Started("a");
      auto b = world.Started("b");
      auto c = world.Started("c");
      for (auto* member : {a.get(), b.get(), c.get()}) {
        ASSERT_TRUE(member->RefreshTo(0, world.runtime.NowMs() + 5'000));
      }
      world.metadata.SetFault(MetadataFault::kDown);
      world.runtime.SleepMs(World::Options().lease_ttl_ms + 1'000);
      c->Stop();
      world.metadata.SetFault(MetadataFault::kNone);
      size_t least = 3;
      for (int i = 0; i < 100; ++i) {
        world.runtime.SleepMs(50);
        least = std::min({least, Members(*a), Members(*b)});
      }
      EXPECT_EQ(least, 3u);
      world.runtime.SleepMs(2 * World::Options().lease_ttl_ms);
      EXPECT_EQ(Members(*a), 2u) << "c did not come back";
      EXPECT_EQ(Members(*b), 2u);
    });
  }
}

TEST(Membership, ANodeThatHasItsSlotsBackIsCalledAgainBeforeTheQuarantineIsOver) {
  InWorld(36, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    a->Suspect(b->self());
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    EXPECT_TRUE(a->Suspected(b->self()));
    ASSERT_TRUE(b->HeartbeatNow().ok());
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    EXPECT_FALSE(a->Suspected(b->self()));
  });
}

TEST(Membership, ThoseThatWaitForTheServiceAskAtDifferentMomentsAndAreSoonBack) {
  InWorld(41, [](World& world) {
    constexpr uint64_t kMembers = 16;
    std::vector<std::unique_ptr<Membership>> members;
    for (uint64_t i = 0; i < kMembers; ++i) {  // All at one moment.
      members.push_back(world.Started("n" + std::to_string(i)));
    }
    world.metadata.SetFault(MetadataFault::kDown);
    uint64_t most = 0;
    const uint64_t first = world.metadata.calls();
    for (int i = 0; i < 3'000; ++i) {  // For a minute.
      const uint64_t before = world.metadata.calls();
      world.runtime.SleepMs(20);
      most = std::max(most, world.metadata.calls() - before);
    }
    EXPECT_GT(world.metadata.calls() - first, 60 * kMembers) << "they go on asking";
    EXPECT_LE(most, kMembers / 2);
    world.metadata.SetFault(MetadataFault::kNone);
    world.runtime.SleepMs(5'000);
    for (const auto& member : members) EXPECT_LT(member->LeaseAgeMs(), 5'000u);
  });
}

TEST(Membership, ASuspicionReachesEverybodyAndTheSuspectsHeartbeatEndsIt) {
  InWorld(33, [](World& world) {
    auto a = world.Started("a");
    auto b = world.Started("b");
    auto c = world.Started("c");
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    a->Suspect(b->self());
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    ASSERT_TRUE(c->RefreshTo(a->view()->revision(), world.runtime.NowMs() + 5'000));
    EXPECT_FALSE(c->view()->node(c->view()->Find(b->self())).authority);
    world.runtime.SleepMs(World::Options().heartbeat_interval_ms + 2'000);
    EXPECT_TRUE(c->view()->node(c->view()->Find(b->self())).authority);
  });
}

TEST(Membership, RefreshToReturnsWithTheRevisionOrAtTheDeadline) {
  InWorld(34, [](World& world) {
    auto a = world.Started("a");
    const uint64_t revision = a->view()->revision();
    EXPECT_TRUE(a->RefreshTo(revision, world.runtime.NowMs()));
    const uint64_t start_ms = world.runtime.NowMs();
    const uint64_t calls = world.metadata.calls();
    EXPECT_FALSE(a->RefreshTo(revision + 1'000'000'000, start_ms + 3'000));
    EXPECT_EQ(world.runtime.NowMs(), start_ms + 3'000);
    EXPECT_LE(world.metadata.calls() - calls, 100u);  // A nonsense revision is no busy loop.
  });
}

TEST(Membership, ViewsAreInstalledInOrderAndShownAfterTheyWereApplied) {
  InWorld(35, [](World& world) {
    auto a = world.Make();
    ASSERT_TRUE(world.Join(*a, "a", HolderAnswer::kGone).ok());
    uint64_t last = 0;
    int views = 0;
    a->Start([&](const ViewPtr& before, const ViewPtr& after) {
      EXPECT_EQ(before->revision(), last);
      last = after->revision();
      if (++views > 1) {
        EXPECT_LT(a->view()->revision(), after->revision());
      }
    });
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));  // Its lease says its era.
    auto b = world.Started("b");
    ASSERT_TRUE(a->RefreshTo(b->view()->revision(), world.runtime.NowMs() + 5'000));
    ASSERT_TRUE(b->Leave().ok());
    ASSERT_TRUE(a->RefreshTo(0, world.runtime.NowMs() + 5'000));
    EXPECT_EQ(Members(*a), 1u);
    EXPECT_EQ(views, 4);
  });
}

using testing::Simulated;
using testing::TestCluster;

TEST(Restart, ATwinOfALiveNodeIsRefused) {
  Simulated(40, [](TestCluster& cluster) {
    cluster.Start("a");
    node::NodeConfig config = TestCluster::Config("a");
    config.listen_host = "a-again";
    auto twin = cluster.Make();
    const uint64_t start_ms = cluster.runtime().NowMs();
    const Status status = twin->Open(config);
    EXPECT_EQ(status.code(), ErrorCode::kConflict);
    EXPECT_NE(status.error().context.find("a:1"), std::string::npos);
    EXPECT_LE(cluster.runtime().NowMs() - start_ms, 3'000u);
  });
}

TEST(Restart, WithoutAListenerTheNextEpochStartsAtOnce) {
  Simulated(41, [](TestCluster& cluster) {
    auto& first = cluster.Start("a");
    cluster.Kill(first);
    const uint64_t start_ms = cluster.runtime().NowMs();
    node::NodeConfig config = TestCluster::Config("a");
    config.listen_host = "a-again";
    auto second = cluster.Make();
    ASSERT_TRUE(second->Open(config).ok());
    EXPECT_EQ(second->name(), "a:2");
    EXPECT_LE(cluster.runtime().NowMs() - start_ms, 3'000u);
    EXPECT_TRUE(second->Put("k", "v").ok());
    second->Close();
  });
}

TEST(Restart, ASilentHolderIsWaitedForAtMostOneLease) {
  Simulated(42, [](TestCluster& cluster) {
    auto& first = cluster.Start("a");
    cluster.network().SetPaused(first.node().endpoint(), true);
    first.metadata.SetFault(testing::MetadataFault::kDown);
    const uint64_t start_ms = cluster.runtime().NowMs();
    node::NodeConfig config = TestCluster::Config("a");
    config.listen_host = "a-again";
    auto second = cluster.Make();
    ASSERT_TRUE(second->Open(config).ok());
    EXPECT_EQ(second->name(), "a:2");
    EXPECT_LE(cluster.runtime().NowMs() - start_ms, config.membership.lease_ttl_ms + 4'000);
    second->Close();
  });
}

// A process that has just hung, with the times that all have who ask for none; a daemon joins as a
// standby that succeeds nobody.
TEST(Restart, ASilentHolderIsOutlastedWithTheDefaultTimesByAStoreAndByADaemon) {
  for (const NodeState state : {NodeState::kActive, NodeState::kStandby}) {
    Simulated(49, [&](TestCluster& cluster) {
      NodeConfig config = TestCluster::Config("a");
      config.membership = MembershipOptions();
      ASSERT_LT(config.startup_timeout_ms, config.membership.lease_ttl_ms);
      auto& first = cluster.Start(config);
      ASSERT_TRUE(first.node().Heartbeat().ok());
      cluster.network().SetPaused(first.node().endpoint(), true);
      first.metadata.SetFault(testing::MetadataFault::kDown);
      const uint64_t start_ms = cluster.runtime().NowMs();
      config.listen_host = "a-again";
      config.initial_state = state;
      auto second = cluster.Make();
      const Status status = second->Open(config);
      ASSERT_TRUE(status.ok()) << status.error().ToString();
      EXPECT_EQ(second->name(), "a:2");
      EXPECT_LE(cluster.runtime().NowMs() - start_ms, config.membership.lease_ttl_ms + 6'000);
      second->Close();
    });
  }
}

}  // namespace
}  // namespace mooncake::node

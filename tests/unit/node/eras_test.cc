// Which era members are of: docs/adr/0019-eras.md.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/test_cluster.h"
#include "world.h"

namespace mooncake::node {
namespace {

using testing::FaultyMetadata;
using testing::MetadataFault;

constexpr uint64_t kLeaseMs = 9'000;  // World::Options

// A member that the service does not hear of until all leases have lapsed. `away` is its end of it.
std::unique_ptr<Membership> Survivor(World& world, FaultyMetadata& away) {
  auto survivor = world.Started("survivor", away);
  EXPECT_TRUE(survivor->HeartbeatNow().ok());
  away.SetFault(MetadataFault::kDown);
  world.runtime.SleepMs(kLeaseMs + 1'000);
  EXPECT_TRUE(world.service.Poll().ok());
  EXPECT_TRUE(world.service.ReadChanges(0)->leases.empty());
  return survivor;
}

// All join at once. Returns their eras.
std::vector<uint64_t> JoinTogether(World& world, const std::vector<Membership*>& members) {
  std::vector<std::unique_ptr<Thread>> threads;
  for (size_t i = 0; i < members.size(); ++i) {
    threads.push_back(world.runtime.Spawn("join", [&world, &members, i] {
      world.runtime.SleepMs(world.runtime.Random() % 3);
      const std::string name = "new-" + std::to_string(i);
      EXPECT_TRUE(world.Join(*members[i], name, HolderAnswer::kGone).ok());
    }));
  }
  for (auto& thread : threads) thread->Join();
  std::vector<uint64_t> eras;
  for (const Membership* member : members) eras.push_back(member->era());
  return eras;
}

TEST(Era, TwoThatJoinAtOnceWhereNobodyIsLeftBeginTheClusterAnew) {
  for (uint64_t seed = 1; seed < 10; ++seed) {
    InWorld(seed, [&](World& world) {
      FaultyMetadata away(world.service, world.runtime);
      const auto survivor = Survivor(world, away);
      const uint64_t slow_ms = 1 + seed % 3;
      FaultyMetadata slow(world.service, world.runtime, {.slow_ms = slow_ms});
      slow.SetFault(MetadataFault::kSlow);
      const auto one = world.Make(slow);
      const auto other = world.Make(slow);
      const auto eras = JoinTogether(world, {one.get(), other.get()});
      EXPECT_GT(eras[0], survivor->era()) << "seed " << seed;
      EXPECT_EQ(eras[0], eras[1]) << "seed " << seed;
    });
  }
}

TEST(Era, WhoDiedBeforeItHadOneIsNobody) {
  InWorld(20, [](World& world) {
    FaultyMetadata away(world.service, world.runtime);
    const auto survivor = Survivor(world, away);
    LeaseRecord crashed;
    crashed.id.stable_id = "crashed";
    crashed.endpoint = "crashed:1";
    ASSERT_TRUE(world.service.Acquire(crashed, kLeaseMs, std::nullopt, false).ok());
    const auto stranger = world.Started("stranger");
    EXPECT_GT(stranger->era(), survivor->era());
  });
}

TEST(Era, WhoCannotWriteItDownTakesTheNewerOneAndSoDoThoseWhoCome) {
  for (MetadataFault fault :
       {MetadataFault::kDown, MetadataFault::kHung, MetadataFault::kFailAfterApply}) {
    InWorld(21, [&](World& world) {
      FaultyMetadata away(world.service, world.runtime);
      const auto survivor = Survivor(world, away);
      world.metadata.SetPutFault(fault);
      const auto stranger = world.Started("stranger");
      EXPECT_GT(stranger->era(), survivor->era());
      world.metadata.SetPutFault(MetadataFault::kNone);
      ASSERT_TRUE(stranger->HeartbeatNow().ok());
      EXPECT_EQ(world.Started("next")->era(), stranger->era());
    });
  }
}

TEST(Era, ASurvivorIsSeenOnlyOnceTheClusterIsKnownToHaveBegunAnew) {
  InWorld(22, [](World& world) {
    FaultyMetadata away(world.service, world.runtime);
    const auto survivor = Survivor(world, away);
    away.SetFault(MetadataFault::kSlow);
    const uint64_t limit_ms = world.runtime.NowMs() + kLeaseMs;
    while (world.service.ReadChanges(0)->leases.empty() && world.runtime.NowMs() < limit_ms) {
      world.runtime.SleepMs(10);
    }
    const auto stranger = world.Make();
    ASSERT_TRUE(world.Join(*stranger, "stranger", HolderAnswer::kGone).ok());
    EXPECT_EQ(stranger->view()->nodes().size(), 2u);
    EXPECT_GT(stranger->era(), survivor->era());
  });
}

TEST(Era, AllThatStartTogetherAreOfOne) {
  for (uint64_t seed = 30; seed < 40; ++seed) {
    InWorld(seed, [&](World& world) {
      std::vector<std::unique_ptr<FaultyMetadata>> ends;
      std::vector<std::unique_ptr<Membership>> made;
      std::vector<Membership*> members;
      for (uint64_t i = 0; i < 6; ++i) {
        ends.push_back(std::make_unique<FaultyMetadata>(world.service, world.runtime,
                                                        FaultyMetadata::Options{.slow_ms = i % 3}));
        ends.back()->SetFault(MetadataFault::kSlow);
        made.push_back(world.Make(*ends.back()));
        members.push_back(made.back().get());
      }
      for (uint64_t era : JoinTogether(world, members)) {
        EXPECT_EQ(era, members[0]->era()) << "seed " << seed;
      }
    });
  }
}

// A member of which there is the lease only.
void AddMember(World& world, const std::string& stable_id, uint64_t era) {
  LeaseRecord record;
  record.id.stable_id = stable_id;
  record.endpoint = stable_id + ":1";
  record.era = era;
  ASSERT_TRUE(world.service.Acquire(record, 1'000'000, std::nullopt, false).ok());
}

// When the member is of the era; 0: not within a minute.
uint64_t AwaitEra(World& world, const Membership& member, uint64_t era) {
  const uint64_t limit_ms = world.runtime.NowMs() + 60'000;
  while (member.era() != era && world.runtime.NowMs() < limit_ms) world.runtime.SleepMs(50);
  return member.era() == era ? world.runtime.NowMs() : 0;
}

TEST(JoinEra, TakesALeaseFromWhenTheNewestOneIsSeen) {
  for (uint64_t seed = 40; seed < 46; ++seed) {
    InWorld(seed, [](World& world) {
      const auto member = world.Started("old");
      const uint64_t newer = member->era() + 1'000;
      AddMember(world, "newer", newer);
      world.runtime.SleepMs(kLeaseMs - 500);
      ASSERT_LT(member->era(), newer);
      AddMember(world, "newest", newer + 1);
      const uint64_t seen_ms = world.runtime.NowMs();
      EXPECT_GE(AwaitEra(world, *member, newer + 1), seen_ms + kLeaseMs);
    });
  }
}

TEST(JoinEra, IsDoneByEachAtItsOwnTime) {
  InWorld(46, [](World& world) {
    std::vector<std::unique_ptr<Membership>> members;
    for (int i = 0; i < 5; ++i) members.push_back(world.Started("old-" + std::to_string(i)));
    const uint64_t newer = members[0]->era() + 1'000;
    AddMember(world, "newer", newer);
    const uint64_t first_ms = world.runtime.NowMs();
    std::vector<uint64_t> joined_ms(members.size());
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t i = 0; i < members.size(); ++i) {
      threads.push_back(world.runtime.Spawn(
          "watch", [&, i] { joined_ms[i] = AwaitEra(world, *members[i], newer); }));
    }
    for (auto& thread : threads) thread->Join();
    std::sort(joined_ms.begin(), joined_ms.end());
    EXPECT_GE(joined_ms.front(), first_ms + kLeaseMs);
    EXPECT_LE(joined_ms.back(), first_ms + 2 * kLeaseMs + 2'000);
    EXPECT_GT(joined_ms.back() - joined_ms.front(), kLeaseMs / 3);
  });
}

TEST(JoinEra, IsNoLostLease) {
  InWorld(47, [](World& world) {
    FaultyMetadata end(world.service, world.runtime);
    const auto member = world.Started("old", end);
    ASSERT_TRUE(member->HeartbeatNow().ok());
    ASSERT_TRUE(member->RefreshTo(0, world.runtime.NowMs() + 5'000));
    (void)member->TakeLeaseLoss();
    const uint64_t newer = member->era() + 1'000;
    AddMember(world, "newer", newer);
    ASSERT_NE(AwaitEra(world, *member, newer), 0u);
    world.runtime.SleepMs(5'000);
    EXPECT_FALSE(member->TakeLeaseLoss());
    // A suspicion is, also where the answer to the heartbeat that ended it was lost.
    ASSERT_TRUE(world.service.ReportSuspect(member->self()).ok());
    end.FailNext(1, MetadataFault::kFailAfterApply);
    ASSERT_FALSE(member->HeartbeatNow().ok());
    ASSERT_TRUE(member->RefreshTo(0, world.runtime.NowMs() + 5'000));
    EXPECT_TRUE(member->TakeLeaseLoss());
  });
}

}  // namespace
}  // namespace mooncake::node

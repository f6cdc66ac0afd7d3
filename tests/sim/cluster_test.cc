// Whole clusters under seeded faults. What is checked each time: SimCluster::Finish.
#include <gtest/gtest.h>

#include "mirror_story.h"
#include "scenario.h"
#include "stranger_story.h"

namespace mooncake::testing {
namespace {

using transfer::NetworkFaults;

NetworkFaults Lossy(SimCluster& cluster) {
  auto chance = [&](uint64_t max_permille) {
    return cluster.Pick(2) == 0 ? 0.0 : static_cast<double>(cluster.Pick(max_permille)) / 1'000;
  };
  return {.latency_ms_min = 0,
          .latency_ms_max = 1 + cluster.Pick(30),
          .drop_request = chance(30),
          .drop_reply = chance(30),
          .reset_request = chance(60),
          .reset_reply = chance(60),
          .duplicate = chance(200),
          .copy_step_bytes = 64};
}

TEST(ClusterSim, FiveNodesWithoutFaults) {
  RunScenario({"FiveNodesWithoutFaults", 5, {}, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 cluster.SleepMs(3'000);
               }});
}

TEST(ClusterSim, EvictionPressure) {
  // A reply is copied in many steps, from extents that are evicted and written anew meanwhile.
  SimOptions options{.nodes = 3,
                     .segment_bytes = 16'384,
                     .faults = {.latency_ms_max = 2, .copy_step_bytes = 64},
                     .losses = true};
  RunScenario({"EvictionPressure", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({.keys = 200});
                 cluster.SleepMs(4'000);
               }});
}

TEST(ClusterSim, CrashAndRestart) {
  SimOptions options{.losses = true, .failures = true};
  RunScenario({"CrashAndRestart", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 3; ++round) {
                   cluster.SleepMs(500 + cluster.Pick(3'000));
                   SimNode& victim = *cluster.AnyLive();
                   cluster.Kill(victim);
                   cluster.SleepMs(cluster.Pick(12'000));
                   cluster.Join(victim.stable_id());
                 }
                 cluster.SleepMs(2'000);
               }});
}

// Lost messages cost a stall each, so an authority that is taken for dead may not be asked what
// it has overwritten or removed, nor may it have told the owners: old values may come back.
TEST(ClusterSim, LossDelayAndDuplication) {
  SimOptions options{.losses = true, .revivals = true, .failures = true};
  RunScenario({"LossDelayAndDuplication", 5, options, [](SimCluster& cluster) {
                 cluster.SetFaults(Lossy(cluster));
                 cluster.StartClients({});
                 cluster.SleepMs(15'000);
               }});
}

// Everything arrives, but late and twice, so nothing may fail, be missed or come back.
TEST(ClusterSim, DelayAndDuplication) {
  RunScenario({"DelayAndDuplication", 5, {}, [](SimCluster& cluster) {
                 cluster.SetFaults({.latency_ms_max = 1 + cluster.Pick(40),
                                    .duplicate = 0.3,
                                    .duplicate_ms_max = 500 + cluster.Pick(2'000),
                                    .copy_step_bytes = 64});
                 cluster.StartClients({.keys = 16});
                 cluster.SleepMs(6'000);
               }});
}

// A value of which a byte is another one when it arrives is told from the one that was put.
TEST(ClusterSim, BytesThatChangeOnTheWay) {
  SimOptions options{.corruption = true, .losses = true, .failures = true};
  RunScenario({"BytesThatChangeOnTheWay", 5, options, [](SimCluster& cluster) {
                 cluster.SetFaults({.latency_ms_max = 5, .corrupt = 0.1});
                 cluster.StartClients({});
                 cluster.SleepMs(4'000);
               }});
}

// Each side goes on by itself. What one of them overwrites or removes, the other cannot know of
// when it is the one that answers after the next partition.
TEST(ClusterSim, Partitions) {
  SimOptions options{.losses = true, .revivals = true, .failures = true};
  RunScenario({"Partitions", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 3; ++round) {
                   cluster.SleepMs(1'000 + cluster.Pick(2'000));
                   cluster.Partition();
                   cluster.SleepMs(cluster.Pick(15'000));
                   cluster.HealNetwork();
                 }
                 cluster.SleepMs(1'000);
               }});
}

TEST(ClusterSim, MetadataFaultsDoNotConcernLiveNodes) {
  RunScenario({"MetadataFaultsDoNotConcernLiveNodes", 5, {}, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 cluster.SleepMs(1'000);
                 const MetadataFault faults[] = {MetadataFault::kDown, MetadataFault::kHung,
                                                 MetadataFault::kSlow};
                 cluster.SetMetadataFault(faults[cluster.Pick(3)]);
                 cluster.SleepMs(cluster.Pick(25'000));
                 if (cluster.Pick(2) == 0) cluster.WipeMetadata();
                 cluster.SetMetadataFault(MetadataFault::kNone);
                 cluster.SleepMs(5'000);
                 cluster.WipeMetadata();
                 cluster.SleepMs(5'000);
               }});
}

TEST(ClusterSim, JoiningAndLeaving) {
  SimOptions options{.nodes = 3, .losses = true};
  RunScenario({"JoiningAndLeaving", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 5; ++round) {
                   cluster.SleepMs(cluster.Pick(2'000));
                   if (cluster.Pick(2) == 0 || cluster.Live().size() < 3) {
                     cluster.JoinNew();
                   } else {
                     cluster.Leave(*cluster.AnyLive());
                   }
                 }
                 cluster.SleepMs(1'000);
               }});
}

// What a node drains is found elsewhere, and what is overwritten or removed meanwhile is not
// brought back by the copy that was being moved.
TEST(ClusterSim, NothingIsMissedWhenNodesAreDrained) {
  SimOptions options{.nodes = 4, .faults = {.latency_ms_max = 10}};
  RunScenario({"NothingIsMissedWhenNodesAreDrained", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({.think_ms_max = 10});
                 for (int round = 0; round < 4; ++round) {
                   cluster.SleepMs(500 + cluster.Pick(1'500));
                   SimNode& leaving = *cluster.AnyLive();
                   cluster.JoinNew();
                   cluster.SleepMs(cluster.Pick(500));
                   cluster.DrainAndLeave(leaving);
                 }
                 cluster.SleepMs(1'000);
               }});
}

TEST(ClusterSim, NothingIsMissedWhenNodesJoin) {
  SimOptions options{.nodes = 2};
  RunScenario({"NothingIsMissedWhenNodesJoin", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 4; ++round) {
                   cluster.SleepMs(cluster.Pick(1'500));
                   cluster.JoinNew();
                 }
                 cluster.SleepMs(1'000);
               }});
}

// Everybody answers and nobody is lost, so nothing may fail, be missed or come back.
TEST(ClusterSim, FalseAlarms) {
  RunScenario({"FalseAlarms", 5, {}, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 8; ++round) {
                   cluster.SleepMs(cluster.Pick(2'500));
                   cluster.Accuse(*cluster.AnyLive());
                   if (cluster.Pick(3) == 0) cluster.Accuse(*cluster.AnyLive());
                 }
                 cluster.SleepMs(1'000);
               }});
}

void OneOfAll(SimCluster& cluster) {
  SimNode& node = *cluster.AnyLive();
  switch (cluster.Pick(9)) {
    case 0:
      cluster.Kill(node);
      cluster.SleepMs(cluster.Pick(12'000));
      cluster.Join(node.stable_id(), true);
      return;
    case 1:
      cluster.Pause(node);
      cluster.SleepMs(cluster.Pick(15'000));
      return cluster.Resume(node);
    case 2: return cluster.Partition();
    case 3: return cluster.BlockOneWay();
    case 4: return cluster.SetFaults(Lossy(cluster));
    case 5: return cluster.SetMetadataFault(static_cast<MetadataFault>(cluster.Pick(5)));
    case 6: return cluster.WipeMetadata();
    case 7: return cluster.Accuse(node);
    default: cluster.HealNetwork(); return cluster.SetMetadataFault(MetadataFault::kNone);
  }
}

// Whatever happens: only values that were put, calls that end, and all is well in the end.
TEST(ClusterSim, AllFaultsAtOnce) {
  SimOptions options{.losses = true, .revivals = true, .failures = true};
  RunScenario({"AllFaultsAtOnce", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 8; ++round) {
                   cluster.SleepMs(cluster.Pick(3'000));
                   OneOfAll(cluster);
                 }
               }});
}

TEST(ClusterSim, PausedNodes) {
  SimOptions options{.losses = true, .failures = true};
  RunScenario({"PausedNodes", 5, options, [](SimCluster& cluster) {
                 cluster.StartClients({});
                 for (int round = 0; round < 2; ++round) {
                   cluster.SleepMs(500 + cluster.Pick(2'000));
                   SimNode& node = *cluster.AnyLive();
                   cluster.Pause(node);
                   // A lease is 10 s.
                   cluster.SleepMs(cluster.Pick(2) == 0 ? 15'000 : cluster.Pick(12'000));
                   cluster.Resume(node);
                   // What it has of values that were overwritten meanwhile goes soon.
                   cluster.SleepMs(8'000);
                 }
                 cluster.SleepMs(3'000);
               }});
}

// Both ask each other what they knew before either is done with that itself.
TEST(ClusterSim, TwoStandStillAtOnce) {
  SimOptions options{.nodes = 4, .losses = true, .failures = true};
  RunScenario({"TwoStandStillAtOnce", 5, options, [](SimCluster& cluster) {
                 const bool busy = cluster.Pick(2) == 0;
                 if (busy) cluster.StartClients({});
                 cluster.SleepMs(2'000);
                 const std::vector<SimNode*> live = cluster.Live();
                 for (size_t i = 0; i < 2; ++i) cluster.Pause(*live[i]);
                 cluster.SleepMs(5'500 + cluster.Pick(3'000));
                 for (size_t i = 0; i < 2; ++i) cluster.Resume(*live[i]);
                 cluster.SleepMs(8'000);
                 if (!busy) cluster.StartClients({});
                 cluster.SleepMs(3'000);
               }});
}

// What the processes of a host are the authorities of is mirrored on another one, so that nothing
// is missed when all of them are back, and what was changed meanwhile is not as it was.
TEST(ClusterSim, AHostStandsStill) {
  SimOptions options{.nodes = 6, .nodes_per_host = 2, .losses = true, .failures = true};
  RunScenario({"AHostStandsStill", 5, options, [](SimCluster& cluster) {
                 cluster.SleepMs(2'000);
                 const std::vector<SimNode*> live = cluster.Live();
                 const auto stops = [&](const std::string& name) {
                   return name == live[0]->name() || name == live[1]->name();
                 };
                 MirrorStory story(
                     cluster, *live[cluster.Pick(2)], *live[2],
                     [&](const std::vector<std::string>& ranks) { return stops(ranks[0]); });
                 story.Write();
                 cluster.SleepMs(1'000);  // Mirrors follow.
                 for (size_t i = 0; i < 2; ++i) cluster.Pause(*live[i]);
                 for (size_t i = 0; i < 2; ++i) cluster.Accuse(*live[i]);  // Whoever called it.
                 cluster.SleepMs(4'000);
                 story.Change();
                 // Their leases, renewed not more than a third of 10 s ago, do not lapse.
                 cluster.SleepMs(cluster.Pick(1'500));
                 for (size_t i = 0; i < 2; ++i) cluster.Resume(*live[i]);
                 cluster.SleepMs(8'000);
                 story.Check();
               }});
}

// The next rank of a dead authority knows from its mirror what an owner has that cannot be asked,
// and what it has no more.
TEST(ClusterSim, SilentOwnersOfADeadAuthority) {
  SimOptions options{.losses = true, .failures = true};
  RunScenario(
      {"SilentOwnersOfADeadAuthority", 5, options, [](SimCluster& cluster) {
         cluster.SleepMs(2'000);
         const std::vector<SimNode*> live = cluster.Live();
         SimNode& authority = *live[0];
         SimNode& owner = *live[1];
         MirrorStory story(cluster, owner, *live[2], [&](const std::vector<std::string>& ranks) {
           return ranks.size() > 1 && ranks[0] == authority.name() && ranks[1] != owner.name();
         });
         story.Write();
         cluster.StartClients({});
         cluster.SleepMs(500);
         cluster.Pause(owner);
         story.Change();
         cluster.SleepMs(100);
         cluster.Kill(authority);
         cluster.Accuse(authority);  // Whoever called it first.
         // Longer than the owner is waited for; its lease, which it has renewed not more
         // than a third of it ago, does not lapse.
         cluster.SleepMs(4'500 + cluster.Pick(1'000));
         cluster.Resume(owner);
         cluster.SleepMs(4'000);
         story.Check();
       }});
}

// The metadata service is away until all leases have lapsed, or comes back empty, and a node that
// nobody knows is the first that it sees. What the others have all along is not lost by that.
TEST(ClusterSim, AStrangerIsFirst) {
  SimOptions options{.nodes = 3, .losses = true, .failures = true};
  RunScenario({"AStrangerIsFirst", 5, options, [](SimCluster& cluster) {
                 StrangerStory story(cluster);
                 story.Write();
                 cluster.SetMetadataFault(MetadataFault::kDown);
                 const bool wiped = cluster.Pick(2) == 0;
                 cluster.SleepMs(wiped ? cluster.Pick(3'000) : 12'000);
                 if (wiped) cluster.WipeMetadata();
                 const uint64_t early = cluster.Pick(3);  // Of the others, one may be back before.
                 if (early == 1) story.LetBack();
                 story.Join();
                 if (early != 1) story.WriteThere();
                 if (early == 2) story.LetBack();
                 cluster.SleepMs(cluster.Pick(2'000));
                 cluster.SetMetadataFault(MetadataFault::kNone);
                 cluster.SleepMs(5'000);
                 story.Check();
                 cluster.SleepMs(20'000);
                 story.Check();
               }});
}

// So it is where there are two: neither takes the other one for somebody who knows.
TEST(ClusterSim, TwoStrangersAreFirst) {
  SimOptions options{.nodes = 3, .losses = true, .failures = true};
  RunScenario({"TwoStrangersAreFirst", 5, options, [](SimCluster& cluster) {
                 StrangerStory story(cluster);
                 story.Write();
                 cluster.SetMetadataFault(MetadataFault::kDown);
                 cluster.SleepMs(12'000);
                 story.Join(2);
                 if (cluster.Pick(2) == 0) story.WriteThere();
                 cluster.SleepMs(cluster.Pick(2'000));
                 cluster.SetMetadataFault(MetadataFault::kNone);
                 cluster.SleepMs(5'000);
                 story.Check();
                 cluster.SleepMs(20'000);
                 story.Check();
               }});
}

// Whoever has written a value knows that it is published, also where the authority dies before it
// has told the owners.
TEST(ClusterSim, AnAuthorityDiesBeforeItsNotices) {
  SimOptions options{
      .nodes = 4, .faults = {.latency_ms_max = 10}, .losses = true, .failures = true};
  RunScenario({"AnAuthorityDiesBeforeItsNotices", 5, options, [](SimCluster& cluster) {
                 cluster.SleepMs(2'000);
                 StrangerStory story(cluster);
                 story.WriteAndKill();
                 cluster.SleepMs(15'000);
                 story.Check();
               }});
}

TEST(ClusterSim, ANameComesAgain) {
  SimOptions options{.nodes = 3, .losses = true, .failures = true};
  RunScenario({"ANameComesAgain", 5, options, [](SimCluster& cluster) {
                 cluster.SleepMs(2'000);
                 StrangerStory story(cluster);
                 story.ComeAgain();
                 cluster.SleepMs(10'000);
                 story.Check();
               }});
}

}  // namespace
}  // namespace mooncake::testing

// Where the values of a node that drains go, while others come and go.
#include "node/evacuation.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "node/put_op.h"
#include "node/read_op.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::kMiB;
using testing::MetadataFault;
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

// As its evictor does.
void DropCopies(TestNode& owner, const std::vector<TestNode*>& nodes) {
  for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
    for (const ExtentPin& extent : owner.core().extents.ShardExtents(shard)) {
      const KeyRef ref = extent->ref();
      for (TestNode* authority : nodes) {
        Route route;
        Version version = 0;
        if (authority->core().routes.Lookup(ref, &route, nullptr) != kItemOk) continue;
        for (const Place& place : route.replicas) {
          if (authority->core().names.NameOf(place.owner) != owner.core().names.NameOf(kSelf))
            continue;
          EXPECT_EQ(authority->core().routes.Check(ref, place, true, &version), kItemOk);
        }
      }
      owner.core().extents.Retire(*extent);
    }
  }
}

TEST(Evacuation, ACopyThatItsOwnerDropsMeanwhileStaysDropped) {
  Simulated(9, [](TestCluster& cluster) {
    Draining nodes(cluster, cluster.Start("a"));
    nodes.Evacuate([&] { DropCopies(nodes.b, {&nodes.a, &nodes.b, &nodes.c}); });
    cluster.Settle();
    nodes.ExpectReadable();
    for (const std::string& key : nodes.pinned) {
      const auto route = nodes.b.Find(key);
      ASSERT_TRUE(route.ok());
      for (const Place& place : route->replicas) {
        if (place.owner != kSelf) continue;
        EXPECT_TRUE(nodes.b.core().extents.Find(place.segment, place.offset, place.generation))
            << key;
      }
    }
  });
}

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

// Keys of several namespaces, by turns, on one node: the same keys in each, with other values.
struct Namespaces {
  explicit Namespaces(TestNode& owner, bool pinned = false) {
    scopes = {{}, {.tenant = "other"}, {.domain = "d"}, {.object_set = "s"}};
    ReplicateConfig here{.preferred_segments = {owner.core().extents.Stats()[0].name}};
    here.with_soft_pin = pinned;
    for (int i = 0; i < 12; ++i) {
      const std::string key = "key-" + std::to_string(i);
      for (size_t s = 0; s < scopes.size(); ++s) {
        const std::string value = ValueIn(s, key);
        const ConstBytes bytes = BytesOf(value);
        const WriteItem item{RefIn(owner, s, key), {&bytes, 1}, bytes.size()};
        EXPECT_TRUE(
            WriteValues(owner.core(), {&item, 1}, {&here, false, owner.Deadline()})[0].ok());
      }
      keys.push_back(key);
    }
  }

  static std::string ValueIn(size_t scope, const std::string& key) {
    return ValueOf(key, kKiB, scope);
  }
  KeyRef RefIn(TestNode& node, size_t scope, const std::string& key) const {
    return MakeKeyRef(*node.core().scopes.Intern(scopes[scope]), key);
  }

  size_t count() const { return keys.size() * scopes.size(); }

  void ExpectReadableFrom(TestNode& reader) const {
    for (const std::string& key : keys) {
      for (size_t s = 0; s < scopes.size(); ++s) {
        std::string value(kKiB, '\0');
        const MutableBytes memory{reinterpret_cast<std::byte*>(value.data()), value.size()};
        ReadItem item{RefIn(reader, s, key), {&memory, 1}, kKiB};
        const auto read = ReadValues(reader.core(), {{&item, 1}, false, {}, reader.Deadline()});
        EXPECT_TRUE(read[0].ok()) << scopes[s].tenant << " " << key;
        EXPECT_EQ(value, ValueIn(s, key)) << scopes[s].tenant << " " << key;
      }
    }
  }

  std::vector<routing::Scope> scopes;
  std::vector<std::string> keys;
};

TEST(Evacuation, MovesTheValuesOfEveryNamespace) {
  for (const bool pinned : {false, true}) {
    Simulated(40, [&](TestCluster& cluster) {
      TestNode& a = cluster.Start("a");
      TestNode& b = cluster.Start("b");
      TestNode& c = cluster.Start("c");
      const Namespaces values(a, pinned);
      cluster.Settle();
      const auto moved = a.node().EvacuateAll({}, a.Deadline());
      ASSERT_TRUE(moved.ok()) << moved.error().ToString();
      EXPECT_EQ(moved->remaining_objects, 0u) << moved->last_error.ToString();
      EXPECT_EQ(moved->moved, values.count());
      values.ExpectReadableFrom(b);
      a.Close();
      values.ExpectReadableFrom(c);
    });
  }
}

TEST(Evacuation, OfASegmentKeepsTheValuesOfEveryNamespace) {
  Simulated(41, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    const Namespaces values(a);
    ASSERT_TRUE(a.node().ExpandMemory(kMiB).ok());
    const std::string first = a.core().extents.Stats()[0].name;
    ASSERT_TRUE(a.node().DrainSegment(first).ok());
    cluster.Settle();
    EXPECT_TRUE(a.node().RetireSegment(first).value_or(false));
    values.ExpectReadableFrom(a);
    values.ExpectReadableFrom(b);
  });
}

TEST(Segments, ComeAndGoWhileTheMetadataServiceIsAway) {
  Simulated(43, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    const Namespaces values(a);
    a.metadata.SetFault(MetadataFault::kDown);
    const auto added = a.node().ExpandMemory(kMiB);
    ASSERT_TRUE(added.ok()) << added.error().ToString();
    const std::string first = a.core().extents.Stats()[0].name;
    EXPECT_TRUE(a.node().DrainSegment(first).ok());
    cluster.runtime().SleepMs(1'000);
    EXPECT_TRUE(a.node().RetireSegment(first).value_or(false));
    EXPECT_EQ(a.node().RetireSegment(first).code(), ErrorCode::kNotFound);
    values.ExpectReadableFrom(b);
    a.metadata.SetFault(MetadataFault::kNone);
    cluster.runtime().SleepMs(2 * TestCluster::Config("a").membership.lease_ttl_ms);
    const ViewPtr view = b.core().view();
    const auto& told = view->node(view->FindName("a:1")).lease.segments;
    ASSERT_EQ(told.size(), 2u);
    EXPECT_EQ(told[0].state, NodeState::kOffline);
    EXPECT_EQ(told[1].name, added->name);
  });
}

TEST(Evacuation, WhatIsOfNoKeyIsFreedAndNotCountedAsMoved) {
  Simulated(42, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    cluster.Start("b");
    const ReplicateConfig here{.preferred_segments = {"a-segment"}};
    ASSERT_TRUE(a.Put("kept", ValueOf("kept", kKiB), &here).ok());
    ExtentPin orphan =
        a.core().extents.Reserve({a.Ref("gone"), kKiB, false, kSelf, a.Deadline(0), {}});
    ASSERT_TRUE(orphan);
    a.core().extents.Commit(*orphan, 1);
    const auto moved = a.node().EvacuateAll({}, a.Deadline());
    ASSERT_TRUE(moved.ok()) << moved.error().ToString();
    EXPECT_EQ(moved->moved, 1u);
    EXPECT_EQ(moved->remaining_objects, 0u) << moved->last_error.ToString();
  });
}

// A node with values that the service forgets while it begins to drain, and another one that is
// first there meanwhile and does not see for a while that the old one is back.
struct Return {
  explicit Return(TestCluster& cluster) : old(cluster.Start("old")) {
    for (int i = 0; i < 20; ++i) keys.push_back("key-" + std::to_string(i));
    for (const Status& put : old.PutAll(keys, kKiB)) EXPECT_TRUE(put.ok());
    used_bytes = old.UsedBytes();
    old.metadata.SetFault(MetadataFault::kDown);
    cluster.runtime().SleepMs(TestCluster::Config("old").membership.lease_ttl_ms + 1'000);
    EXPECT_TRUE(old.node().SetState(NodeState::kDraining).ok());
    stranger = &cluster.Start("stranger");
    stranger->metadata.SetFault(MetadataFault::kDown);
    old.metadata.SetFault(MetadataFault::kNone);
    cluster.runtime().SleepMs(2'000);
    EXPECT_NE(old.core().view()->FindName("stranger:1"), routing::kNoNode);
    EXPECT_EQ(stranger->core().view()->FindName("old:1"), routing::kNoNode);
    EXPECT_LT(old.core().membership.era(), stranger->core().membership.era());
  }

  TestNode& old;
  TestNode* stranger = nullptr;
  std::vector<std::string> keys;
  uint64_t used_bytes = 0;
};

TEST(Evacuation, KeepsWhatAClusterThatBeganAnewHasYetToAskForAndSaysSo) {
  for (uint64_t seed = 10; seed < 15; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      Return scene(cluster);
      const auto moved = scene.old.node().EvacuateAll({}, scene.old.Deadline(3'000));
      ASSERT_TRUE(moved.ok()) << moved.error().ToString();
      EXPECT_EQ(moved->moved, 0u);
      EXPECT_EQ(moved->remaining_objects, scene.keys.size());
      EXPECT_EQ(moved->remaining_bytes, scene.keys.size() * kKiB);
      EXPECT_NE(moved->last_error.context.find("20 values"), std::string::npos)
          << moved->last_error.ToString();
      EXPECT_EQ(scene.old.UsedBytes(), scene.used_bytes);
    });
  }
}

TEST(Evacuation, WaitsUntilAClusterThatBeganAnewHasAsked) {
  for (uint64_t seed = 20; seed < 25; ++seed) {
    Simulated(seed, [](TestCluster& cluster) {
      Return scene(cluster);
      auto later = cluster.runtime().Spawn("later", [&] {
        cluster.runtime().SleepMs(2'000);
        scene.stranger->metadata.SetFault(MetadataFault::kNone);
      });
      const uint64_t started_ms = cluster.runtime().NowMs();
      const auto moved = scene.old.node().EvacuateAll({}, scene.old.Deadline(60'000));
      later->Join();
      ASSERT_TRUE(moved.ok()) << moved.error().ToString();
      EXPECT_EQ(moved->remaining_objects, 0u) << moved->last_error.ToString();
      EXPECT_LT(cluster.runtime().NowMs(), started_ms + 20'000);
      for (const auto& read : scene.stranger->GetAll(scene.keys, kKiB)) EXPECT_TRUE(read.ok());
    });
  }
}

// The only other node stands still for longer than a stall.
TEST(Evacuation, WaitsForOneThatDoesNotAnswerAsLongAsThereIsTime) {
  Simulated(11, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    const ReplicateConfig local{.prefer_local = true};
    ASSERT_TRUE(a.Put("k", "v", &local).ok());
    cluster.Settle();
    cluster.network().Block(b.node().endpoint(), a.node().endpoint(), true);
    const auto later = cluster.runtime().Spawn("later", [&] {
      cluster.runtime().SleepMs(10 * TestCluster::kStallMs);
      cluster.network().Block(b.node().endpoint(), a.node().endpoint(), false);
    });
    const auto moved = a.node().EvacuateAll({}, a.Deadline(60'000));
    later->Join();
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ(moved->remaining_objects, 0u) << moved->last_error.ToString();
    EXPECT_EQ(b.Get("k").value_or(""), "v");
  });
}

// It was written here before the node began to drain, and is published afterwards.
TEST(Evacuation, MovesWhatAWriterWasAboutToPublish) {
  Simulated(12, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    TestNode& writer = cluster.Start("writer", 0);
    std::unique_ptr<Thread> drain;
    writer.transport.BeforeNext(static_cast<uint16_t>(MessageType::kPublish), [&] {
      drain = cluster.runtime().Spawn("drain", [&] {
        const auto moved = a.node().EvacuateAll({}, a.Deadline());
        EXPECT_TRUE(moved.ok() && moved->remaining_objects == 0);
        a.Close();
      });
      cluster.runtime().SleepMs(500);
    });
    const ReplicateConfig on_a{.preferred_segments = {"a-segment"}};
    const std::string key = TestCluster::KeyAt(writer, "b:1");
    EXPECT_TRUE(writer.Put(key, "v", &on_a).ok());
    drain->Join();
    EXPECT_EQ(b.Get(key).value_or(""), "v");
  });
}

// Its answer is lost, and the next authority refuses what has been done already.
TEST(Evacuation, APublishThatIsRefusedTheSecondTimeTakesNothingBack) {
  Simulated(13, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    TestNode& c = cluster.Start("c");
    const ReplicateConfig local{.prefer_local = true};
    const auto keys = TestCluster::KeysAt(a, "b:1", 8);
    for (const std::string& key : keys) ASSERT_TRUE(a.Put(key, "v", &local).ok());
    cluster.Settle();
    std::unique_ptr<Thread> leave;
    a.transport.BeforeNext(static_cast<uint16_t>(MessageType::kPublish), [&] {
      cluster.network().Block(b.node().endpoint(), a.node().endpoint(), true);
      leave = cluster.runtime().Spawn("leave", [&] {
        cluster.runtime().SleepMs(300);
        EXPECT_TRUE(b.node().SetState(NodeState::kDraining).ok());
      });
    });
    const auto moved = a.node().EvacuateAll({}, a.Deadline());
    ASSERT_TRUE(leave != nullptr);
    leave->Join();
    cluster.network().Block(b.node().endpoint(), a.node().endpoint(), false);
    EXPECT_TRUE(moved.ok() && moved->remaining_objects == 0);
    cluster.runtime().SleepMs(30'000);
    for (const std::string& key : keys) EXPECT_EQ(c.Get(key).value_or("nothing"), "v") << key;
  });
}

TEST(Evacuation, WaitsForNobodyWhenTheNodeCloses) {
  Simulated(30, [](TestCluster& cluster) {
    Return scene(cluster);
    auto later = cluster.runtime().Spawn("later", [&] {
      cluster.runtime().SleepMs(1'000);
      scene.old.Close();
    });
    const uint64_t started_ms = cluster.runtime().NowMs();
    (void)scene.old.node().EvacuateAll({}, scene.old.Deadline(60'000));
    EXPECT_LT(cluster.runtime().NowMs(), started_ms + 3'000);
    later->Join();
  });
}

}  // namespace
}  // namespace mooncake::node

#include "node/rounds.h"

#include <gtest/gtest.h>

#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

struct TwoAndAClient {
  explicit TwoAndAClient(TestCluster& cluster)
      : runtime(cluster.runtime()),
        a(cluster.Start("a")),
        b(cluster.Start("b")),
        client(cluster.Start("client", 0)) {}
  Runtime& runtime;
  TestNode& a;
  TestNode& b;
  TestNode& client;
};

// How long Again goes on with the same evidence.
template <typename Evidence>
uint64_t MsUntilItGivesUp(Runtime& runtime, Rounds& rounds, Evidence evidence) {
  const uint64_t start_ms = runtime.NowMs();
  do {
    evidence();
  } while (rounds.Again());
  return runtime.NowMs() - start_ms;
}

TEST(Rounds, GroupsItemsByAuthorityInTheirOrder) {
  Simulated(1, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    std::vector<std::string> keys = TestCluster::KeysAt(world.client, "a:1", 3);
    for (const auto& key : TestCluster::KeysAt(world.client, "b:1", 3)) keys.push_back(key);
    std::vector<KeyRef> refs;
    for (const std::string& key : keys) refs.push_back(world.client.Ref(key));
    Rounds rounds(world.client.core(), world.client.Deadline());
    const std::vector<uint32_t> items = {5, 0, 1, 4};
    std::vector<uint32_t> again;
    const auto groups = rounds.Group(refs, items, {}, &again);
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].items, (std::vector<uint32_t>{5, 4}));
    EXPECT_EQ(groups[1].items, (std::vector<uint32_t>{0, 1}));
    EXPECT_TRUE(again.empty());
  });
}

// A frame names its scope once.
TEST(Rounds, ItemsOfDifferentScopesShareNoFrame) {
  Simulated(1, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    const auto other = world.client.core().scopes.Intern({.tenant = "other"});
    ASSERT_TRUE(other);
    std::vector<std::string> keys = TestCluster::KeysAt(world.client, "a:1", 2);
    std::vector<KeyRef> refs;
    for (int i = 0; i < 4; ++i) refs.push_back(world.client.Ref(keys[i / 2]));
    refs[1].scope = refs[2].scope = other->index;
    Rounds rounds(world.client.core(), world.client.Deadline());
    const std::vector<uint32_t> items = {0, 1, 2, 3};
    std::vector<uint32_t> again;
    const auto groups = rounds.Group(refs, items, {}, &again);
    ASSERT_EQ(groups.size(), 2u);
    EXPECT_EQ(groups[0].items, (std::vector<uint32_t>{0, 3}));
    EXPECT_EQ(groups[1].items, (std::vector<uint32_t>{1, 2}));
    EXPECT_EQ(groups[0].node, groups[1].node);
  });
}

TEST(Rounds, AChangeThatGoesAgainWithoutAnAnswerIsTheSameChange) {
  Simulated(9, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    const std::string key = TestCluster::KeyAt(world.client, "a:1");
    const std::vector<KeyRef> refs = {world.client.Ref(key), world.client.Ref(key)};
    Rounds rounds(world.client.core(), world.client.Deadline());
    std::vector<uint32_t> again;
    const auto send = [&](std::vector<uint32_t> items) {
      auto groups = rounds.Group(refs, items, {}, &again);
      v1::Origin origin;
      rounds.FillChange(groups.at(0), &origin);
      EXPECT_EQ(groups[0].sequence, origin.sequence());
      return groups[0];
    };
    const AuthorityGroup first = send({0, 1});
    const Error gone = TransportError("gone");
    EXPECT_FALSE(rounds.Answered(first, &gone, false, &again));
    EXPECT_EQ(again, first.items);
    EXPECT_NE(send({0}).sequence, first.sequence);  // Not the same one.
    EXPECT_EQ(send({0, 1}).sequence, first.sequence);
    const AuthorityGroup next = send({0, 1});
    EXPECT_NE(next.sequence, first.sequence);  // That one was answered.
    again.clear();
    EXPECT_TRUE(rounds.Answered(next, nullptr, true, &again));
    EXPECT_TRUE(again.empty());
    EXPECT_FALSE(rounds.Answered(next, nullptr, false, &again));  // By something else.
    EXPECT_EQ(again, next.items);
    EXPECT_NE(rounds.last_error().context.find("malformed"), std::string::npos);
  });
}

TEST(Rounds, CutsFramesByItemsPayloadAndKeyBytes) {
  Simulated(2, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    const std::string key = TestCluster::KeyAt(world.client, "a:1");
    const auto frames = [&](std::vector<KeyRef> refs, std::vector<uint64_t> sizes) {
      std::vector<uint32_t> items(refs.size());
      for (uint32_t i = 0; i < items.size(); ++i) items[i] = i;
      Rounds rounds(world.client.core(), world.client.Deadline());
      size_t total = 0;
      std::vector<uint32_t> again;
      const auto groups = rounds.Group(refs, items, sizes, &again);
      for (const AuthorityGroup& group : groups) total += group.items.size();
      EXPECT_EQ(total, refs.size());
      return groups.size();
    };
    const KeyRef ref = world.client.Ref(key);
    EXPECT_EQ(frames(std::vector<KeyRef>(kItemsPerMessageMax, ref), {}), 1u);
    EXPECT_EQ(frames(std::vector<KeyRef>(kItemsPerMessageMax + 1, ref), {}), 2u);
    EXPECT_EQ(frames({ref, ref, ref}, std::vector<uint64_t>(3, kPayloadPerMessageMax / 2)), 2u);
    EXPECT_EQ(frames({ref, ref}, std::vector<uint64_t>(2, 2 * kPayloadPerMessageMax)), 2u);
    const std::string long_key(60'000, 'k');
    KeyRef long_ref = ref;
    long_ref.key = long_key;
    EXPECT_GE(frames(std::vector<KeyRef>(1000, long_ref), {}), 60'000'000u / kMessageSizeMax);
  });
}

TEST(Rounds, LeavesOutWhatThisNodeOrNobodyAnswersFor) {
  Simulated(3, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    const KeyRef ref = client.Ref("k");
    const uint32_t item = 0;
    std::vector<uint32_t> again;
    Rounds nobody(client.core(), client.Deadline());
    EXPECT_TRUE(nobody.Group({&ref, 1}, {&item, 1}, {}, &again).empty());
    EXPECT_EQ(again, std::vector<uint32_t>{item});
    EXPECT_EQ(nobody.last_error().code, ErrorCode::kTransport);
    auto& a = cluster.Start("a");
    Rounds self(a.core(), a.Deadline());
    EXPECT_TRUE(self.Group({&ref, 1}, {&item, 1}, {}, &again).empty());
    EXPECT_EQ(again.size(), 2u);
  });
}

TEST(Rounds, GoesOnUntilTheDeadlineWhileASlotIsTakenOver) {
  Simulated(4, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    Rounds rounds(world.client.core(), world.runtime.NowMs() + 7'000);
    const uint64_t ms =
        MsUntilItGivesUp(world.runtime, rounds, [&] { rounds.NoteCode(kItemRetryLater, 0); });
    EXPECT_GE(ms, 7'000u);
    EXPECT_LE(ms, 7'100u);
    EXPECT_EQ(rounds.last_error().code, ErrorCode::kTransport);
  });
}

TEST(Rounds, ADeadPeerIsWaitedForNoLongerThanATakeover) {
  Simulated(5, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    const uint64_t limit_ms = world.client.core().options.takeover_wait_ms;
    Rounds rounds(world.client.core(), world.client.Deadline(60'000));
    const uint64_t ms = MsUntilItGivesUp(
        world.runtime, rounds, [&] { rounds.NotePeerFailed({"a", 1}, TransportError("gone")); });
    EXPECT_GE(ms, limit_ms);
    EXPECT_LE(ms, limit_ms + 100);
    EXPECT_EQ(rounds.last_error().context, "gone");
  });
}

TEST(Rounds, ThatNobodyIsLeftIsWaitedForOnce) {
  Simulated(8, [](TestCluster& cluster) {
    auto& client = cluster.Start("client", 0);
    Runtime& runtime = cluster.runtime();
    const uint64_t limit_ms = client.core().options.takeover_wait_ms;
    const KeyRef ref = client.Ref("k");
    const uint32_t item = 0;
    const auto wait = [&] {
      Rounds rounds(client.core(), client.Deadline(60'000));
      return MsUntilItGivesUp(runtime, rounds, [&] {
        std::vector<uint32_t> again;
        rounds.Group({&ref, 1}, {&item, 1}, {}, &again);
      });
    };
    const uint64_t first_ms = wait();
    EXPECT_GE(first_ms, limit_ms / 2);
    EXPECT_LE(first_ms, limit_ms + 100);
    EXPECT_EQ(wait(), 0u);
    // A suspect may take its slots back with its next heartbeat: that is waited for.
    cluster.Start("a");
    EXPECT_TRUE(client.Put("k", "v").ok());
    ASSERT_TRUE(client.metadata.ReportSuspect({"a", 1}).ok());
    EXPECT_EQ(client.Get("k").value_or(""), "v");
  });
}

TEST(Rounds, ThatOnlySuspectsAreLeftIsWaitedForOnce) {
  Simulated(10, [](TestCluster& cluster) {
    node::NodeConfig config = TestCluster::Config("a");
    config.membership.lease_ttl_ms = 30'000;
    auto& only = cluster.Start(config);
    auto& client = cluster.Start("client", 0);
    ASSERT_TRUE(client.Put("k", "v").ok());
    cluster.Kill(only);
    Runtime& runtime = cluster.runtime();
    const uint64_t limit_ms = client.core().options.takeover_wait_ms;
    const auto wait = [&] {
      const uint64_t start_ms = runtime.NowMs();
      EXPECT_EQ(client.Get("k").code(), ErrorCode::kTransport);
      EXPECT_FALSE(client.Put("k", "v").ok());
      EXPECT_FALSE(client.Remove("k").ok());
      EXPECT_FALSE(client.ExistAll(std::vector<std::string>{"k"})[0].ok());
      return runtime.NowMs() - start_ms;
    };
    EXPECT_LE(wait(), limit_ms + 200);
    while (client.core().view()->Find({"a", 1}) != routing::kNoNode) {
      EXPECT_EQ(wait(), 0u);
      runtime.SleepMs(700);
    }
  });
}

// Where nodes without storage keep the routes, it is not the authority that a put waits for.
TEST(Rounds, ThatOnlySuspectsStoreIsWaitedForOnce) {
  Simulated(12, [](TestCluster& cluster) {
    node::NodeConfig storage = TestCluster::Config("storage");
    storage.labels["route"] = "false";
    storage.membership.lease_ttl_ms = 30'000;
    auto& only = cluster.Start(storage);
    node::NodeConfig routes = TestCluster::Config("routes");
    routes.segment_bytes = 0;
    routes.labels["storage"] = "false";
    cluster.Start(routes);
    auto& client = cluster.Start("client", 0);
    ASSERT_TRUE(client.Put("k", "v").ok());
    cluster.Kill(only);
    Runtime& runtime = cluster.runtime();
    const uint64_t limit_ms = client.core().options.takeover_wait_ms;
    const auto wait = [&] {
      const uint64_t start_ms = runtime.NowMs();
      const Status refused = client.Put("k", "v");
      // It looks for others, and may be the first to see that the lease has lapsed.
      EXPECT_EQ(refused.code(), client.core().view()->OnlySuspectsStore("") ? ErrorCode::kTransport
                                                                            : ErrorCode::kNoSpace);
      return runtime.NowMs() - start_ms;
    };
    ASSERT_TRUE(client.metadata.ReportSuspect({"storage", 1}).ok());
    ASSERT_TRUE(client.core().membership.RefreshTo(0, client.Deadline()));
    const uint64_t first_ms = wait();
    EXPECT_GE(first_ms, limit_ms / 2);
    EXPECT_LE(first_ms, limit_ms + 200);
    while (client.core().view()->OnlySuspectsStore("")) {
      EXPECT_LE(wait(), 5u);
      runtime.SleepMs(700);
    }
    const Status alone = client.Put("k", "v");
    EXPECT_EQ(alone.code(), ErrorCode::kNoSpace) << alone.error().ToString();
  });
}

TEST(Rounds, WhatWaitsForOthersDoesNotGiveUpBecauseOfADeadPeer) {
  Simulated(11, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    const uint64_t limit_ms = world.client.core().options.takeover_wait_ms;
    Rounds rounds(world.client.core(), world.client.Deadline(60'000));
    const uint64_t until_ms = world.runtime.NowMs() + 2 * limit_ms;
    while (world.runtime.NowMs() < until_ms) {
      rounds.NotePeerFailed({"a", 1}, TransportError("gone"));
      rounds.NoteOthers();
      ASSERT_TRUE(rounds.Again());
    }
    rounds.NotePeerFailed({"a", 1}, TransportError("gone"));
    EXPECT_FALSE(rounds.Again());
  });
}

TEST(Rounds, AFailureLongAfterAnEarlierOneIsWaitedForAgain) {
  Simulated(6, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    Rounds rounds(world.client.core(), world.client.Deadline(60'000));
    rounds.NotePeerFailed({"a", 1}, TransportError("once"));
    ASSERT_TRUE(rounds.Again());
    const uint64_t until_ms = world.runtime.NowMs() + 10'000;
    while (world.runtime.NowMs() < until_ms) {
      rounds.NoteCode(kItemRetryLater, 0);
      ASSERT_TRUE(rounds.Again());
    }
    rounds.NotePeerFailed({"b", 1}, TransportError("another"));
    EXPECT_TRUE(rounds.Again());
  });
}

TEST(Rounds, WaitsForTheViewThatAnAnswerKnows) {
  Simulated(7, [](TestCluster& cluster) {
    TwoAndAClient world(cluster);
    Rounds rounds(world.client.core(), world.client.Deadline());
    const uint64_t before = rounds.view()->revision();
    ASSERT_TRUE(world.a.node().SetState(NodeState::kDraining).ok());
    rounds.NoteCode(kItemWrongAuthority, world.a.core().view()->revision());
    ASSERT_TRUE(rounds.Again());
    EXPECT_GT(rounds.view()->revision(), before);
    EXPECT_GE(rounds.view()->revision(), world.a.core().view()->revision());
  });
}

}  // namespace
}  // namespace mooncake::node

// The table of round trips, copies and metadata calls in docs: each row is counted here.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::TransportCounts;
using testing::ValueOf;

uint16_t TypeOf(MessageType type) { return static_cast<uint16_t>(type); }

// What `call` makes `node` send, once everything else is quiet.
template <typename Function>
TransportCounts Count(TestCluster& cluster, TestNode& node, Function call) {
  cluster.Settle();
  node.transport.Take();
  call();
  return node.transport.Take();
}

struct ThreeNodes {
  explicit ThreeNodes(TestCluster& cluster)
      : a(cluster.Start("a")), b(cluster.Start("b")), client(cluster.Start("client", 0)) {}
  TestNode& a;
  TestNode& b;
  TestNode& client;
};

ReplicateConfig Local() { return {.prefer_local = true}; }
ReplicateConfig Copies(uint32_t count) { return {.replica_num = count, .prefer_local = false}; }

TEST(RoundTrips, AGetFromAnAuthorityThatOwnsTheBytesIsOne) {
  Simulated(1, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    ASSERT_TRUE(nodes.a.Put(key, ValueOf(key, 4096)).ok());
    const auto counts = Count(cluster, nodes.client, [&] {
      EXPECT_EQ(nodes.client.Get(key).value_or(""), ValueOf(key, 4096));
    });
    EXPECT_EQ(counts.rounds, 1u);
    EXPECT_EQ(counts.messages, 1u);
    EXPECT_EQ(counts.reply_bytes, 4096u);
  });
}

TEST(RoundTrips, AGetWhoseBytesAreElsewhereIsTwo) {
  Simulated(2, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    const ReplicateConfig local = Local();
    ASSERT_TRUE(nodes.b.Put(key, ValueOf(key, 4096), &local).ok());
    const auto counts = Count(cluster, nodes.client, [&] {
      EXPECT_EQ(nodes.client.Get(key).value_or(""), ValueOf(key, 4096));
    });
    EXPECT_EQ(counts.rounds, 2u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kGet)), 1u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kRead)), 1u);
    EXPECT_EQ(counts.reply_bytes, 4096u);
  });
}

TEST(RoundTrips, AGetOfACopyThatTheAskerOwnsMovesNoBytes) {
  Simulated(16, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const ReplicateConfig two = Copies(2);
    for (const std::string authority : {"a:1", "b:1"}) {
      const std::string key = TestCluster::KeyAt(nodes.client, authority);
      ASSERT_TRUE(nodes.client.Put(key, ValueOf(key, 4096), &two).ok());
      for (TestNode* node : {&nodes.a, &nodes.b}) {
        const auto counts = Count(
            cluster, *node, [&] { EXPECT_EQ(node->Get(key).value_or(""), ValueOf(key, 4096)); });
        EXPECT_EQ(counts.messages, node->name() == authority ? 0u : 1u);
        EXPECT_EQ(counts.reply_bytes, 0u);
      }
    }
  });
}

TEST(RoundTrips, AGetOfOwnBytesByTheirAuthorityIsNone) {
  Simulated(3, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    const auto counts = Count(cluster, nodes.a, [&] {
      EXPECT_TRUE(nodes.a.Put(key, "v").ok());
      EXPECT_EQ(nodes.a.Get(key).value_or(""), "v");
      EXPECT_TRUE(nodes.a.Remove(key).ok());
    });
    EXPECT_EQ(counts.rounds, 0u);
  });
}

TEST(RoundTrips, ARoutedPutIsOne) {
  Simulated(4, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "b:1");
    const std::string value = ValueOf(key, 100'000);
    const auto counts =
        Count(cluster, nodes.client, [&] { EXPECT_TRUE(nodes.client.Put(key, value).ok()); });
    EXPECT_EQ(counts.rounds, 1u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kPut)), 1u);
    EXPECT_EQ(counts.request_bytes, value.size() + kChecksumBytes);
    EXPECT_EQ(counts.reply_bytes, 0u);
  });
}

TEST(RoundTrips, APreferLocalPutIsOnePublishWithoutBytes) {
  Simulated(5, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "b:1");
    const ReplicateConfig local = Local();
    const auto counts = Count(cluster, nodes.a, [&] {
      EXPECT_TRUE(nodes.a.Put(key, ValueOf(key, 100'000), &local).ok());
    });
    EXPECT_EQ(counts.rounds, 1u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kPublish)), 1u);
    EXPECT_EQ(counts.request_bytes, 0u);
  });
}

TEST(RoundTrips, CopiesAreWrittenInParallelAndThenPublished) {
  Simulated(6, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    cluster.Start("c");
    const std::string key = TestCluster::KeyAt(nodes.client, "b:1");
    const ReplicateConfig three = Copies(3);
    const auto counts = Count(cluster, nodes.client, [&] {
      EXPECT_TRUE(nodes.client.Put(key, ValueOf(key, 1000), &three).ok());
    });
    EXPECT_EQ(counts.rounds, 2u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kWrite)), 3u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kPublish)), 1u);
    EXPECT_EQ(counts.request_bytes, 3 * (1000 + kChecksumBytes));
  });
}

TEST(RoundTrips, ABatchIsOneMessageToEachPeerAllAtOnce) {
  Simulated(7, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    std::vector<std::string> keys = TestCluster::KeysAt(nodes.client, "a:1", 60);
    for (std::string& key : TestCluster::KeysAt(nodes.client, "b:1", 60)) keys.push_back(key);
    const auto puts = Count(cluster, nodes.client, [&] {
      for (const Status& status : nodes.client.PutAll(keys, 512)) EXPECT_TRUE(status.ok());
    });
    EXPECT_EQ(puts.rounds, 1u);
    EXPECT_EQ(puts.messages, 2u);
    const auto gets = Count(cluster, nodes.client, [&] {
      for (const auto& size : nodes.client.GetAll(keys, 512)) EXPECT_EQ(size.value_or(0), 512u);
    });
    EXPECT_EQ(gets.rounds, 1u);
    EXPECT_EQ(gets.messages, 2u);
    EXPECT_EQ(gets.reply_bytes, 120u * 512);
  });
}

TEST(RoundTrips, ABatchWhoseBytesAreElsewhereIsTwo) {
  Simulated(8, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const auto at_a = TestCluster::KeysAt(nodes.client, "a:1", 40);
    const auto at_b = TestCluster::KeysAt(nodes.client, "b:1", 40);
    const ReplicateConfig local = Local();
    for (const Status& status : nodes.b.PutAll(at_a, 512, &local)) EXPECT_TRUE(status.ok());
    for (const Status& status : nodes.a.PutAll(at_b, 512, &local)) EXPECT_TRUE(status.ok());
    std::vector<std::string> keys = at_a;
    keys.insert(keys.end(), at_b.begin(), at_b.end());
    const auto counts = Count(cluster, nodes.client, [&] {
      for (const auto& size : nodes.client.GetAll(keys, 512)) EXPECT_EQ(size.value_or(0), 512u);
    });
    EXPECT_EQ(counts.rounds, 2u);
    EXPECT_EQ(counts.messages, 4u);
  });
}

TEST(RoundTrips, AnAuthorityReadsABatchFromItsOwnerInOne) {
  Simulated(9, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const auto keys = TestCluster::KeysAt(nodes.client, "a:1", 40);
    const ReplicateConfig local = Local();
    for (const Status& status : nodes.b.PutAll(keys, 512, &local)) EXPECT_TRUE(status.ok());
    const auto counts = Count(cluster, nodes.a, [&] {
      for (const auto& size : nodes.a.GetAll(keys, 512)) EXPECT_EQ(size.value_or(0), 512u);
    });
    EXPECT_EQ(counts.rounds, 1u);
    EXPECT_EQ(counts.messages, 1u);
  });
}

TEST(RoundTrips, ExistenceIsOneMessageToEachAuthority) {
  Simulated(10, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    std::vector<std::string> keys;
    for (int i = 0; i < 1024; ++i) keys.push_back("key-" + std::to_string(i));
    ASSERT_TRUE(nodes.client.Put(keys[5], "v").ok());
    const auto counts = Count(cluster, nodes.client, [&] {
      const auto answers = nodes.client.ExistAll(keys);
      for (size_t i = 0; i < keys.size(); ++i) {
        const auto right = i == 5 ? Existence::kPresent : Existence::kMissing;
        EXPECT_EQ(answers[i].value_or(Existence::kPresent), right) << i;
      }
    });
    EXPECT_EQ(counts.rounds, 1u);
    EXPECT_EQ(counts.messages, 2u);
  });
}

TEST(RoundTrips, AMissAsksAtMostTwoRanks) {
  Simulated(11, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const auto counts = Count(cluster, nodes.client, [&] {
      EXPECT_EQ(nodes.client.Get("nothing").code(), ErrorCode::kNotFound);
    });
    EXPECT_GE(counts.messages, 1u);
    EXPECT_LE(counts.messages, 2u);
  });
}

TEST(RoundTrips, RemovalAndRoutesAreOne) {
  Simulated(12, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    ASSERT_TRUE(nodes.client.Put(key, "v").ok());
    const auto route =
        Count(cluster, nodes.client, [&] { EXPECT_EQ(nodes.client.Find(key)->size, 1u); });
    const auto remove =
        Count(cluster, nodes.client, [&] { EXPECT_TRUE(nodes.client.Remove(key).ok()); });
    EXPECT_EQ(route.rounds, 1u);
    EXPECT_EQ(remove.rounds, 1u);
  });
}

TEST(RoundTrips, APutWithoutRoomAtItsAuthorityIsAWriteElsewhereAndAPublish) {
  Simulated(13, [](TestCluster& cluster) {
    auto& full = cluster.Start("full", 64 * testing::kKiB);
    cluster.Start("roomy");
    auto& client = cluster.Start("client", 0);
    const std::string key = TestCluster::KeyAt(client, full.name());
    const std::string value = ValueOf(key, 100'000);
    const auto counts = Count(cluster, client, [&] { EXPECT_TRUE(client.Put(key, value).ok()); });
    EXPECT_EQ(client.Get(key).value_or(""), value);
    EXPECT_LE(counts.rounds, 3u);
    EXPECT_EQ(counts.messages_of.at(TypeOf(MessageType::kWrite)), 1u);
  });
}

TEST(RoundTrips, ASilentOwnerIsNoMissAndADeadOneIs) {
  Simulated(16, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    const std::string key = TestCluster::KeyAt(nodes.client, "a:1");
    const ReplicateConfig there{.preferred_segments = {"b-segment"}};
    ASSERT_TRUE(nodes.client.Put(key, "v", &there).ok());
    cluster.network().SetPaused(nodes.b.node().endpoint(), true);
    // The second one falls into the quarantine.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(nodes.client.Get(key).code(), ErrorCode::kTransport) << i;
    }
    cluster.network().SetPaused(nodes.b.node().endpoint(), false);
    cluster.runtime().SleepMs(10'000);
    EXPECT_EQ(nodes.client.Get(key).value_or(""), "v");
    cluster.network().SetDown(nodes.b.node().endpoint(), true);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(nodes.client.Get(key).code(), ErrorCode::kNotFound) << i;
    }
  });
}

TEST(RoundTrips, NoRequestNeedsTheMetadataService) {
  Simulated(14, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    std::vector<std::string> keys;
    for (int i = 0; i < 300; ++i) keys.push_back("key-" + std::to_string(i));
    cluster.Settle();
    const uint64_t before = nodes.client.metadata.calls();
    for (const Status& status : nodes.client.PutAll(keys, 100)) EXPECT_TRUE(status.ok());
    for (const auto& size : nodes.client.GetAll(keys, 100)) EXPECT_EQ(size.value_or(0), 100u);
    for (const auto& answer : nodes.client.ExistAll(keys)) EXPECT_TRUE(answer.ok());
    EXPECT_TRUE(nodes.client.Remove(keys[0]).ok());
    EXPECT_EQ(nodes.client.Get(keys[0]).code(), ErrorCode::kNotFound);
    EXPECT_EQ(nodes.client.metadata.calls(), before);
  });
}

TEST(RoundTrips, AnIdleNodeAsksTheMetadataServiceLessThanTwiceASecond) {
  Simulated(15, [](TestCluster& cluster) {
    ThreeNodes nodes(cluster);
    cluster.Settle();
    const uint64_t before = nodes.a.metadata.calls();
    cluster.runtime().SleepMs(60'000);
    EXPECT_LE(nodes.a.metadata.calls() - before, 2u * 60);
  });
}

}  // namespace
}  // namespace mooncake::node

// Reads of values of which a copy is wrong, or of which an owner is gone.
#include <gtest/gtest.h>

#include "node/read_op.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

constexpr size_t kSize = 1000;

// Changes a byte of what the node has of the key.
void Spoil(TestNode& node, const std::string& key) {
  const Result<Route> route = node.Find(key);
  ASSERT_TRUE(route.ok());
  bool spoilt = false;
  for (const Place& place : route->replicas) {
    if (place.owner != kSelf) continue;
    const ExtentPin pin = node.core().extents.Find(place.segment, place.offset, place.generation);
    ASSERT_TRUE(pin);
    pin->data()[7] ^= std::byte{1};
    spoilt = true;
  }
  ASSERT_TRUE(spoilt);
}

struct TwoCopies {
  explicit TwoCopies(TestCluster& cluster)
      : a(cluster.Start("a")),
        b(cluster.Start("b")),
        client(cluster.Start("client", 0)),
        key(TestCluster::KeyAt(client, "a:1")),
        value(ValueOf(key, kSize)) {
    const ReplicateConfig policy{.replica_num = 2, .prefer_local = false};
    EXPECT_TRUE(client.Put(key, value, &policy).ok());
  }
  TestNode& a;
  TestNode& b;
  TestNode& client;
  const std::string key;
  const std::string value;
};

TEST(WrongCopy, InTheOwnMemoryIsReplacedByAnotherReplica) {
  Simulated(1, [](TestCluster& cluster) {
    TwoCopies world(cluster);
    Spoil(world.a, world.key);
    EXPECT_EQ(world.a.Get(world.key).value_or("nothing"), world.value);
    Spoil(world.b, world.key);
    EXPECT_EQ(world.a.Get(world.key).code(), ErrorCode::kChecksum);
  });
}

TEST(WrongCopy, AtAnotherNodesAuthorityIsReplacedByTheOwnReplica) {
  Simulated(2, [](TestCluster& cluster) {
    TwoCopies world(cluster);
    Spoil(world.b, world.key);  // b asks a, which leaves it to b's own copy.
    EXPECT_EQ(world.b.Get(world.key).value_or("nothing"), world.value);
  });
}

TEST(WrongCopy, OfTheAuthorityIsReplacedByAnotherReplica) {
  Simulated(3, [](TestCluster& cluster) {
    TwoCopies world(cluster);
    Spoil(world.a, world.key);
    EXPECT_EQ(world.client.Get(world.key).value_or("nothing"), world.value);
    Spoil(world.b, world.key);
    EXPECT_EQ(world.client.Get(world.key).code(), ErrorCode::kChecksum);
  });
}

TEST(DeadOwner, IsAMissAlsoBesideKeysWhoseAuthorityIsDead) {
  Simulated(4, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& dead = cluster.Start("dead");
    auto& client = cluster.Start("client", 0);
    const std::vector<std::string> keys = {TestCluster::KeyAt(client, "a:1"),
                                           TestCluster::KeyAt(client, "dead:1")};
    const ReplicateConfig there{.preferred_storage_owners = {"dead"}, .prefer_local = false};
    for (const Status& status : client.PutAll(keys, kSize, &there)) ASSERT_TRUE(status.ok());
    cluster.Settle();
    client.metadata.SetFault(MetadataFault::kDown);  // So the slots stay where they are.
    a.metadata.SetFault(MetadataFault::kDown);
    cluster.Kill(dead);
    const uint64_t start_ms = cluster.runtime().NowMs();
    for (int round = 0; round < 2; ++round) {
      const auto results = client.GetAll(keys, kSize);
      EXPECT_EQ(results[0].code(), ErrorCode::kNotFound);
      EXPECT_EQ(results[1].code(), ErrorCode::kTransport);
    }
    EXPECT_LE(cluster.runtime().NowMs() - start_ms, 3'500u);  // Waited for once.
  });
}

}  // namespace
}  // namespace mooncake::node

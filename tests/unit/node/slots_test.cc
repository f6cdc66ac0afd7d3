// A cluster that was founded with more slots than the default.
#include <gtest/gtest.h>

#include <set>

#include "node/control_calls.h"
#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::MetadataFault;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

constexpr uint32_t kBits = 18;

NodeConfig ConfigWith(const std::string& name, uint32_t slot_bits) {
  NodeConfig config = TestCluster::Config(name);
  config.membership.policy.slot_bits = slot_bits;
  return config;
}

std::vector<std::string> Keys(int count) {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back("key-" + std::to_string(i));
  return keys;
}

void PutAll(TestNode& writer, const std::vector<std::string>& keys, uint64_t version,
            const ReplicateConfig* policy = nullptr) {
  for (const std::string& key : keys) {
    const Status status = writer.Put(key, ValueOf(key, 100, version), policy);
    EXPECT_TRUE(status.ok()) << key << (status.ok() ? "" : status.error().ToString());
  }
}

void ExpectAll(TestNode& reader, const std::vector<std::string>& keys, uint64_t version) {
  for (const std::string& key : keys) {
    const auto value = reader.Get(key);
    ASSERT_TRUE(value.ok()) << key << " on " << reader.name() << value.error().ToString();
    EXPECT_EQ(*value, ValueOf(key, 100, version)) << key << " on " << reader.name();
  }
}

// Each slot is served by its first authority and nobody else.
void ExpectServedOnce(const std::vector<TestNode*>& nodes) {
  const ViewPtr view = nodes[0]->core().view();
  ASSERT_EQ(view->slots().bits(), kBits);
  for (routing::Slot slot = 0; slot < view->slots().count(); ++slot) {
    for (TestNode* node : nodes) {
      const bool first = view->node(view->Ranks(slot)[0]).lease.id.ToString() == node->name();
      ASSERT_EQ(node->core().routes.Serves(slot), first) << slot << " on " << node->name();
    }
  }
}

TEST(ManySlots, JoiningNodesAdoptTheNumberAndTakeTheirShareOver) {
  Simulated(1, [](TestCluster& cluster) {
    auto& a = cluster.Start(ConfigWith("a", kBits));
    const auto keys = Keys(300);
    PutAll(a, keys, 0);
    auto& b = cluster.Start("b");  // Asks for none.
    auto& c = cluster.Start(ConfigWith("c", kBits));
    cluster.Settle();
    ExpectServedOnce({&a, &b, &c});
    for (TestNode* node : {&a, &b, &c}) ExpectAll(*node, keys, 0);
    PutAll(b, keys, 1);
    ExpectAll(c, keys, 1);
  });
}

TEST(ManySlots, ADeadAuthoritysSlotsAreTakenOverWithTheirKeys) {
  Simulated(2, [](TestCluster& cluster) {
    auto& a = cluster.Start(ConfigWith("a", kBits));
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    cluster.Settle();
    const auto keys = Keys(300);
    const ReplicateConfig two{.replica_num = 2};
    PutAll(a, keys, 0, &two);
    cluster.Settle();
    cluster.Kill(c);
    cluster.runtime().SleepMs(2 * TestCluster::Config("c").membership.lease_ttl_ms);
    cluster.Settle();
    ExpectServedOnce({&a, &b});
    ExpectAll(a, keys, 0);
    ExpectAll(b, keys, 0);
    cluster.Start("d");
    ExpectAll(b, keys, 0);
  });
}

TEST(ManySlots, ALeavingNodeHandsItsSlotsOver) {
  Simulated(3, [](TestCluster& cluster) {
    auto& a = cluster.Start(ConfigWith("a", kBits));
    auto& b = cluster.Start("b");
    cluster.Settle();
    const auto keys = Keys(100);
    const ReplicateConfig here{.prefer_local = true};
    PutAll(a, keys, 0, &here);
    b.Close();
    cluster.Settle();
    ExpectAll(a, keys, 0);
    ExpectServedOnce({&a});
  });
}

TEST(SlotBits, AnotherNumberThanTheClustersIsRefusedAndNothingIsLeftBehind) {
  for (const auto& [founded, asked] : {std::pair{18u, 16u}, {0u, 18u}, {18u, 21u}}) {
    Simulated(4, [founded = founded, asked = asked](TestCluster& cluster) {
      auto& a = cluster.Start(ConfigWith("a", founded));
      auto other = cluster.Make();
      const Status status = other->Open(ConfigWith("b", asked));
      ASSERT_EQ(status.code(), ErrorCode::kInvalidArgument);
      const std::string text = status.error().ToString();
      const std::string ours = "slot_bits=" + std::to_string(founded == 0 ? 16 : founded);
      EXPECT_NE(text.find("asks for"), std::string::npos) << text;
      EXPECT_NE(text.find("slot_bits=" + std::to_string(asked)), std::string::npos) << text;
      EXPECT_NE(text.find(ours), std::string::npos) << text;
      EXPECT_NE(text.find("set by a:1"), std::string::npos) << text;
      cluster.runtime().SleepMs(2'000);
      EXPECT_EQ(a.core().view()->nodes().size(), 1u);
    });
  }
}

TEST(SlotBits, NumbersThatDoNotExistAreRefused) {
  for (uint32_t bits : {1u, 15u, 22u, 64u}) {
    Simulated(5, [bits](TestCluster& cluster) {
      auto node = cluster.Make();
      EXPECT_EQ(node->Open(ConfigWith("a", bits)).code(), ErrorCode::kInvalidArgument);
    });
  }
}

TEST(SlotBits, ComeBackWithTheSurvivorsOfAServiceThatLostThem) {
  Simulated(6, [](TestCluster& cluster) {
    auto& a = cluster.Start(ConfigWith("a", kBits));
    const auto keys = Keys(50);
    PutAll(a, keys, 0);
    cluster.state().Forget();
    cluster.runtime().SleepMs(3'000);
    auto& b = cluster.Start("b");
    cluster.Settle();
    ExpectServedOnce({&a, &b});
    ExpectAll(b, keys, 0);
  });
}

// It founds another cluster, because nobody has told the service of the first one yet. The two
// must not mistake each other's slots for their own.
TEST(SlotBits, ANewcomerThatFindsAnEmptyServiceStaysApart) {
  Simulated(7, [](TestCluster& cluster) {
    auto& a = cluster.Start(ConfigWith("a", kBits));
    auto& b = cluster.Start("b");
    cluster.Settle();
    const auto keys = Keys(100);
    PutAll(a, keys, 0);
    cluster.state().Forget();
    auto& c = cluster.Start("c");
    ASSERT_EQ(c.core().view()->slots().bits(), 16u);
    cluster.runtime().SleepMs(15'000);
    ASSERT_EQ(a.core().view()->nodes().size(), 3u);
    ExpectServedOnce({&a, &b});
    ExpectAll(a, keys, 0);
    ExpectAll(b, keys, 0);
    EXPECT_EQ(c.Get(keys[0]).code(), ErrorCode::kNotFound);
    EXPECT_TRUE(c.Put("own", "x").ok());
    EXPECT_EQ(a.Get("own").code(), ErrorCode::kNotFound);
    ExpectServedOnce({&a, &b});
    // As docs/operations.md has it repaired.
    c.Close();
    cluster.state().Forget();
    cluster.runtime().SleepMs(3'000);
    auto& d = cluster.Start("d");
    cluster.Settle();
    ExpectServedOnce({&a, &b, &d});
    ExpectAll(d, keys, 0);
  });
}

TEST(ManySlots, PeersThatNameSlotsBeyondTheNumberAreRefused) {
  Simulated(8, [](TestCluster& cluster) {
    auto& node = cluster.Start(ConfigWith("a", kBits));
    for (const uint32_t slot : {(1u << kBits) - 1, 1u << kBits, ~0u}) {
      v1::PullRequest pull;
      pull.mutable_origin()->set_revision(1);
      pull.add_slots(slot);
      v1::PullReply routes;
      bool valid = true;
      ServePull(node.core(), pull, &routes, &valid);
      EXPECT_EQ(valid, slot < 1u << kBits) << slot;
      v1::InventoryRequest inventory;
      inventory.add_slots(slot);
      v1::InventoryReply extents;
      ServeInventory(node.core(), inventory, &extents, &valid);
      EXPECT_EQ(valid, slot < 1u << kBits) << slot;
    }
  });
}

// The truths about all slots of a large cluster are half a message by themselves; the routes then
// come on pages of their own.
TEST(ManySlots, APullOfAllOfThemFitsIntoMessages) {
  Simulated(9, [](TestCluster& cluster) {
    auto& node = cluster.Start(ConfigWith("a", 21));
    const auto keys = Keys(200);
    PutAll(node, keys, 0);
    v1::PullRequest pull;
    pull.mutable_origin()->set_revision(kNewest);
    for (uint32_t slot = 0; slot < node.core().routes.slots().count(); ++slot) pull.add_slots(slot);
    v1::PullReply first;
    bool served_first = false;  // What was asked for before is told at more length.
    ServePull(node.core(), pull, &first, &served_first);
    ASSERT_TRUE(served_first);
    std::set<std::string> seen;
    int served = 0;
    for (int page = 0; page < 2'000; ++page) {
      v1::PullReply reply;
      bool valid = false;
      ServePull(node.core(), pull, &reply, &valid);
      ASSERT_TRUE(valid);
      EXPECT_LE(reply.ByteSizeLong(), kMessageSizeMax);
      if (page == 0) {
        EXPECT_GT(reply.ByteSizeLong(), kKeyBytesPerMessageMax);
        EXPECT_LE(reply.routes_size(), 1);
      }
      served += reply.served_size();
      for (const v1::Route& route : reply.routes()) {
        EXPECT_TRUE(seen.insert(route.key()).second) << route.key() << " twice";
      }
      if (reply.next_cursor() == 0) break;
      pull.set_cursor(reply.next_cursor());
    }
    EXPECT_EQ(served, 1 << 21);
    EXPECT_EQ(seen.size(), keys.size());
  });
}

}  // namespace
}  // namespace mooncake::node

// Quotas of tenants in whole clusters: never more than the quota, and all of it.
#include "node/quota.h"

#include <gtest/gtest.h>

#include <set>

#include "node/evictor.h"
#include "unit/node/quotas.h"

namespace mooncake::node {
namespace {

using testing::kMiB;

TEST(Quota, APutBeyondItIsRefusedAndNothingElseHappens) {
  Simulated(1, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    for (const Status& status : PutAs(a, "other", Keys(100))) EXPECT_TRUE(status.ok());
    SetQuota(a, 10 * kSize);
    EXPECT_EQ(PutEach(a, Keys(20)), 10);
    EXPECT_EQ(Stored(a, Keys(20)), 10u);
    EXPECT_EQ(Total({&a}).used, (Load{10 * kSize, 10}));
    EXPECT_EQ(Total({&a}).pending, Load{});
    // Full: what does not grow passes.
    EXPECT_TRUE(a.Put("key-3", ValueOf("key-3", kSize, 1)).ok());
    EXPECT_EQ(a.Put("key-3", ValueOf("key-3", kSize + 1)).code(), ErrorCode::kConflict);
    EXPECT_EQ(a.Get("key-3").value_or(""), ValueOf("key-3", kSize, 1));
    EXPECT_TRUE(a.Put("key-3", ValueOf("key-3", kSize - 100)).ok());
    EXPECT_TRUE(a.Put("empty", "").ok());  // Nothing, in bytes.
    EXPECT_EQ(a.Put("small", ValueOf("small", 101)).code(), ErrorCode::kConflict);
    EXPECT_TRUE(a.Put("small", ValueOf("small", 100)).ok());
    ASSERT_TRUE(a.Remove("key-4").ok());
    EXPECT_TRUE(a.Put("key-15", ValueOf("key-15", kSize)).ok());
    for (const Status& status : PutAs(a, "other", Keys(120))) EXPECT_TRUE(status.ok());
  });
}

TEST(Quota, CountsKeysAsWell) {
  Simulated(2, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, std::nullopt, 7);
    EXPECT_EQ(PutEach(b, Keys(20)), 7);
    EXPECT_EQ(Total({&a, &b}).used, (Load{7 * kSize, 7}));
  });
}

TEST(Quota, IsOneForTheWholeClusterWhoeverWritesAndHowever) {
  ReplicateConfig two{.replica_num = 2, .prefer_local = false};
  ReplicateConfig local{.prefer_local = true};
  const ReplicateConfig* policies[] = {nullptr, &two, &local};
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Simulated(10 + seed, [&](TestCluster& cluster) {
      auto& a = cluster.Start("a");
      auto& b = cluster.Start("b");
      auto& c = cluster.Start("c");
      auto& client = cluster.Start("client", 0);
      const ReplicateConfig* policy = policies[seed];
      const uint64_t copies = policy == nullptr ? 1 : policy->replica_num;
      SetQuota(client, 24 * kSize * copies + kSize / 2);
      int accepted = 0;
      TestNode* writers[] = {&a, &b, &c, &client};
      for (int i = 0; i < 4; ++i) {
        accepted += PutEach(*writers[i], Keys(12, std::to_string(i) + "-"), policy);
      }
      EXPECT_EQ(accepted, 24);
      EXPECT_EQ(Total({&a, &b, &c}).used, (Load{24 * kSize * copies, 24}));
      EXPECT_EQ(Total({&a, &b, &c}).pending, Load{});
      EXPECT_LE(Total({&a, &b, &c}).granted.bytes, 24 * kSize * copies + kSize / 2);
      // All of it can be used again.
      for (int i = 0; i < 4; ++i) {
        for (const std::string& key : Keys(12, std::to_string(i) + "-")) (void)a.Remove(key);
      }
      EXPECT_EQ(Total({&a, &b, &c}).used, Load{});
      EXPECT_EQ(PutEach(client, Keys(30), policy), 24);
    });
  }
}

TEST(Quota, IsNotAskedForCopiesThatNobodyCanHold) {
  Simulated(13, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& client = cluster.Start("client", 0);
    SetQuota(a, 10 * kSize);
    for (const uint32_t copies : {3u, 100u}) {
      const ReplicateConfig many{.replica_num = copies, .prefer_local = false};
      const auto keys = Keys(5, std::to_string(copies) + "-");
      EXPECT_EQ(Accepted(client.PutAll(keys, kSize, &many)), 5);
    }
    EXPECT_EQ(Total({&a}).used, (Load{10 * kSize, 10}));
    EXPECT_EQ(Total({&a}).pending, Load{});
  });
}

TEST(Quota, ABatchIsAdmittedItemByItem) {
  Simulated(3, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& client = cluster.Start("client", 0);
    SetQuota(a, 40 * kSize);
    EXPECT_EQ(Accepted(client.PutAll(Keys(100), kSize)), 40);
    EXPECT_EQ(Accepted(a.PutAll(Keys(100), kSize)), 40);  // The same ones.
    EXPECT_EQ(Total({&a, &b}).used, (Load{40 * kSize, 40}));
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    const auto more = Keys(50, "more-");
    EXPECT_EQ(Accepted(client.PutAll(more, kSize, &two)), 0);
    EXPECT_EQ(Total({&a, &b}).pending, Load{});
  });
}

TEST(Quota, ConcurrentWritersDoNotExceedIt) {
  Simulated(4, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    SetQuota(a, 50 * kSize);
    std::atomic<int> accepted = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    TestNode* writers[] = {&a, &b, &c};
    for (int i = 0; i < 6; ++i) {
      threads.push_back(cluster.runtime().Spawn("writer", [&, i] {
        accepted += PutEach(*writers[i % 3], Keys(20, std::to_string(i) + "-"));
      }));
    }
    for (auto& thread : threads) thread->Join();
    EXPECT_EQ(accepted, 50);
    EXPECT_EQ(Total({&a, &b, &c}).used, (Load{50 * kSize, 50}));
  });
}

TEST(Quota, ARefusedPutWritesNoCopiesAndEvictsNothing) {
  Simulated(5, [](TestCluster& cluster) {
    auto& a = cluster.Start("a", 64 * 1024);
    auto& b = cluster.Start("b", 64 * 1024);
    auto& client = cluster.Start("client", 0);
    SetQuota(a, 10 * kSize);
    ASSERT_EQ(PutEach(client, Keys(5)), 5);
    // The others fill the rest.
    PutAs(a, "other", Keys(200));
    cluster.Settle();
    const uint64_t used = a.UsedBytes() + b.UsedBytes();
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    client.transport.Take();
    const std::string large = ValueOf("large", 11 * kSize);
    EXPECT_EQ(client.Put("large", large, &two).code(), ErrorCode::kConflict);
    const auto sent = client.transport.Take();
    EXPECT_FALSE(sent.messages_of.contains(static_cast<uint16_t>(MessageType::kWrite)));
    EXPECT_EQ(client.Put("large", large).code(), ErrorCode::kConflict);
    EXPECT_EQ(a.UsedBytes() + b.UsedBytes(), used);
    EXPECT_EQ(Total({&a, &b}).pending, Load{});
  });
}

TEST(Quota, APutWithinItCostsNoMessageMore) {
  Simulated(6, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    cluster.Start("b");
    auto& client = cluster.Start("client", 0);
    SetQuota(a, kMiB);
    const auto keys = TestCluster::KeysAt(client, "a:1", 2);
    ASSERT_TRUE(client.Put(keys[0], ValueOf(keys[0], kSize)).ok());  // The ledger gives some more.
    client.transport.Take();
    a.transport.Take();
    ASSERT_TRUE(client.Put(keys[1], ValueOf(keys[1], kSize)).ok());
    EXPECT_EQ(client.transport.Take().messages, 1u);
    EXPECT_EQ(a.transport.Take().messages, 0u);
  });
}

TEST(Quota, WhatAFailedPutHadChargedIsGivenBack) {
  Simulated(7, [](TestCluster& cluster) {
    auto& a = cluster.Start("a", 64 * 1024);
    auto& b = cluster.Start("b", 64 * 1024);
    auto& client = cluster.Start("client", 0);
    SetQuota(a, kMiB);
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    const std::string large = ValueOf("large", 100 * 1024);  // No segment is that large.
    EXPECT_EQ(client.Put("large", large, &two).code(), ErrorCode::kNoSpace);
    EXPECT_EQ(client.Put("large", large).code(), ErrorCode::kNoSpace);
    EXPECT_EQ(Total({&a, &b}).pending, Load{});
    EXPECT_EQ(Total({&a, &b}).used, Load{});
  });
}

TEST(Quota, EvictionAndLossMakeRoom) {
  Simulated(8, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, 40 * kSize);
    ASSERT_EQ(PutEach(a, Keys(40)), 40);
    bool would_block = false;
    ASSERT_GT(b.core().evictor.MakeRoom(10 * kSize, {}, true, UINT64_MAX, &would_block), 0u);
    cluster.Settle();
    const uint64_t left = Stored(a, Keys(40));
    EXPECT_LT(left, 40u);
    EXPECT_EQ(Total({&a, &b}).used, (Load{left * kSize, left}));
    cluster.Kill(b);
    cluster.runtime().SleepMs(15'000);
    a.core().membership.RefreshTo(0, a.Deadline());
    const uint64_t rest = Stored(a, Keys(40));
    EXPECT_EQ(Total({&a}).used, (Load{rest * kSize, rest}));
    EXPECT_EQ(PutEach(a, Keys(80, "new-")), 40 - static_cast<int>(rest));
  });
}

TEST(Quota, SurvivesTheDeathOfTheLedgerAndOfAnyOther) {
  for (const bool ledger_dies : {true, false}) {
    Simulated(20 + ledger_dies, [&](TestCluster& cluster) {
      std::vector<TestNode*> nodes;
      for (const char* name : {"a", "b", "c", "d"}) nodes.push_back(&cluster.Start(name));
      SetQuota(*nodes[0], 60 * kSize);
      const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
      ASSERT_EQ(PutEach(*nodes[0], Keys(20), &two), 20);  // 40 of it.
      const ViewPtr view = nodes[0]->core().view();
      const std::string ledger =
          view->node(view->Ranks(LedgerSlot(view->slots(), kTenant))[0]).lease.id.ToString();
      auto victim = std::find_if(nodes.begin(), nodes.end(), [&](TestNode* node) {
        return (node->name() == ledger) == ledger_dies;
      });
      cluster.Kill(**victim);
      nodes.erase(victim);
      // From at once on, and until long after: never more than the quota.
      const auto keys = Keys(60, "new-");
      for (const std::string& key : keys) {
        (void)nodes[0]->Put(key, ValueOf(key, kSize));
        cluster.runtime().SleepMs(250);
      }
      nodes[0]->core().membership.RefreshTo(0, nodes[0]->Deadline());
      const Load used = Total({nodes[0], nodes[1], nodes[2]}).used;
      EXPECT_LE(used.bytes, 60 * kSize);
      uint64_t bytes = 0;
      auto all = Keys(20);
      all.insert(all.end(), keys.begin(), keys.end());
      for (const std::string& key : all) {
        const auto route = nodes[1]->Find(key);
        if (route.ok()) bytes += route->replicas.size() * route->size;
      }
      EXPECT_EQ(used.bytes, bytes);
      EXPECT_EQ(PutEach(*nodes[2], Keys(80, "last-")), static_cast<int>(60 - bytes / kSize));
    });
  }
}

TEST(Quota, SurvivesJoinsAndLeaves) {
  Simulated(9, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetQuota(a, 60 * kSize);
    ASSERT_EQ(PutEach(a, Keys(40)), 40);
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    EXPECT_EQ(Total({&a, &b, &c}).used, (Load{40 * kSize, 40}));
    EXPECT_GT(Total({&b}).used.objects, 0u);
    EXPECT_EQ(PutEach(c, Keys(100)), 60);
    EXPECT_EQ(Total({&a, &b, &c}).used, (Load{60 * kSize, 60}));
    b.Close();
    a.core().membership.RefreshTo(0, a.Deadline());
    c.core().membership.RefreshTo(0, a.Deadline());
    const uint64_t stored = Stored(a, Keys(100));
    EXPECT_EQ(Total({&a, &c}).used, (Load{stored * kSize, stored}));
    EXPECT_EQ(PutEach(c, Keys(100, "new-")), 60 - static_cast<int>(stored));
  });
}

TEST(Quota, ThatIsFullKeepsNoTenantsValuesFromMoving) {
  Simulated(75, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetQuota(a, 10 * kSize);
    const auto version = a.node().SetTenantPolicy("other", {.max_bytes = 10 * kSize}, std::nullopt);
    ASSERT_TRUE(version.ok()) << version.error().ToString();
    for (const std::string& key : Keys(10)) {  // Neighbours are of different tenants.
      EXPECT_EQ(PutEach(a, {key}), 1);
      EXPECT_EQ(Accepted(PutAs(a, "other", {key})), 1);
    }
    auto& b = cluster.Start("b");
    cluster.Start("c");
    cluster.Settle();
    const auto moved = a.node().EvacuateAll({}, a.Deadline());
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ(moved->moved, 20u);
    EXPECT_EQ(moved->remaining_objects, 0u) << moved->last_error.ToString();
    for (const auto& read : b.GetAll(Keys(10), kSize)) EXPECT_TRUE(read.ok());
    std::vector<Status> more = PutAs(b, "other", {"key-0", "one more"});
    EXPECT_EQ(Accepted(more), 1);
  });
}

TEST(Quota, SetBelowWhatIsStoredItOnlyRefusesGrowth) {
  Simulated(30, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    ASSERT_EQ(PutEach(a, Keys(40)), 40);
    SetQuota(b, 20 * kSize);
    EXPECT_EQ(Total({&a, &b}).used, (Load{40 * kSize, 40}));
    EXPECT_EQ(PutEach(a, Keys(40)), 40);
    EXPECT_EQ(PutEach(a, Keys(1, "new-")), 0);
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(a.Remove(Keys(40)[i]).ok());
    EXPECT_EQ(PutEach(b, Keys(1, "new-")), 0);
    ASSERT_TRUE(a.Remove(Keys(40)[20]).ok());
    EXPECT_EQ(PutEach(b, Keys(2, "new-")), 1);
    ASSERT_TRUE(b.node().DeleteTenantPolicy(kTenant, std::nullopt).ok());
    EXPECT_EQ(b.node().GetTenantPolicy(kTenant).code(), ErrorCode::kNotFound);
    EXPECT_EQ(PutEach(b, Keys(50, "more-")), 50);
    SetQuota(a, 100 * kSize);
    EXPECT_EQ(PutEach(b, Keys(50, "rest-")), 30);
  });
}

TEST(Quota, HoldsForWritersThatDoNotKnowOfIt) {
  Simulated(31, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, 20 * kSize);
    ASSERT_EQ(PutEach(a, Keys(18, "first-")), 18);
    // As a writer of minor version 1 does it: written and published without a charge.
    auto& client = cluster.Start("client", 0);
    const auto keys = TestCluster::KeysAt(client, "b:1", 4);
    int published = 0;
    for (const std::string& key : keys) {
      const std::string value = ValueOf(key, kSize);
      bool would_block = false;
      ExtentPin pin = a.core().evictor.Reserve(
          {client.Ref(key), kSize, false, kSelf, cluster.runtime().NowMs(), {}}, true,
          client.Deadline(), &would_block);
      ASSERT_TRUE(pin);
      v1::PublishRequest request;
      client.core().peers.FillOrigin(true, request.mutable_origin());
      WriteScope({}, request.mutable_scope());
      Route route{0, kSize, 0, false, false, {pin->place()}};
      route.replicas[0].owner = *client.core().names.IndexOf("a:1");
      WriteRoute(key, route, client.core().names, request.add_routes());
      const ViewPtr view = client.core().view();
      const auto reply = client.core().peers.Ask<v1::PublishReply>(
          view->node(view->FindName("b:1")), MessageType::kPublish, request, client.Deadline());
      ASSERT_TRUE(reply.ok());
      published += reply->codes(0) == kItemOk;
      if (reply->codes(0) == kItemOk) continue;
      EXPECT_EQ(reply->codes(0), CodeOf(ErrorCode::kConflict));
      a.core().extents.Retire(*pin);
    }
    EXPECT_EQ(published, 2);
    EXPECT_EQ(Total({&a, &b}).used, (Load{20 * kSize, 20}));
  });
}

TEST(Quota, NonsenseFromPeersChangesNothing) {
  Simulated(32, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& client = cluster.Start("client", 0);
    SetQuota(a, 20 * kSize);
    const ViewPtr view = client.core().view();
    const auto& peer = view->node(view->FindName("a:1"));
    v1::QuotaChargeRequest charge;
    client.core().peers.FillOrigin(true, charge.mutable_origin());
    WriteScope({}, charge.mutable_scope());
    AddKey("k", charge.mutable_keys());
    charge.add_value_sizes(UINT64_MAX);
    charge.add_copies(1);
    const auto charged = client.core().peers.Ask<v1::QuotaChargeReply>(
        peer, MessageType::kQuotaCharge, charge, client.Deadline());
    ASSERT_TRUE(charged.ok());
    EXPECT_EQ(charged->codes_size(), 0);
    v1::QuotaGrantRequest grant;
    client.core().peers.FillOrigin(false, grant.mutable_origin());
    grant.set_tenant("nobody");
    grant.mutable_asker()->set_node("a:1");
    const auto other = client.core().peers.Ask<v1::QuotaGrantReply>(peer, MessageType::kQuotaGrant,
                                                                    grant, client.Deadline());
    ASSERT_TRUE(other.ok());
    EXPECT_EQ(other->revision(), 0u);  // It speaks for somebody else.
    grant.mutable_asker()->set_node(client.name());
    grant.mutable_asker()->set_revision(view->revision());
    grant.mutable_want()->set_bytes(UINT64_MAX);
    grant.set_tenant(kTenant);
    const auto own = client.core().peers.Ask<v1::QuotaGrantReply>(peer, MessageType::kQuotaGrant,
                                                                  grant, client.Deadline());
    ASSERT_TRUE(own.ok());
    EXPECT_EQ(own->code(), kItemRetryLater);  // It is no authority.
    EXPECT_EQ(PutEach(client, Keys(30)), 20);
  });
}

TEST(Quota, ThePolicyComesBackWithAServiceThatLostEverything) {
  Simulated(33, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, 20 * kSize);
    ASSERT_EQ(PutEach(a, Keys(30)), 20);
    cluster.state().Forget();
    cluster.runtime().SleepMs(30'000);
    cluster.Settle();
    const auto policy = b.node().GetTenantPolicy(kTenant);
    ASSERT_TRUE(policy.ok()) << policy.error().ToString();
    EXPECT_EQ(policy->policy.max_bytes, 20 * kSize);
    EXPECT_EQ(PutEach(b, Keys(30)), 20);
    ASSERT_TRUE(a.node().DeleteTenantPolicy(kTenant, policy->version).ok());
    EXPECT_EQ(a.node().DeleteTenantPolicy(kTenant, std::nullopt).code(), ErrorCode::kNotFound);
  });
}

// Of a newer version, or damaged.
TEST(Quota, APolicyThatCannotBeReadLiftsNoLimit) {
  Simulated(35, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetQuota(a, 20 * kSize);
    const std::string name = *metadata::TenantPolicyName(kTenant);
    const auto written = a.metadata.GetDocument(name);
    ASSERT_TRUE(written.ok());
    const std::string odd = R"({"spec": "of tomorrow"})";
    ASSERT_TRUE(a.metadata.PutDocument(name, odd, written->version).ok());
    cluster.Settle();
    EXPECT_EQ(PutEach(a, Keys(30)), 20);
    cluster.state().Forget();
    cluster.runtime().SleepMs(30'000);
    cluster.Settle();
    EXPECT_EQ(PutEach(b, Keys(30)), 20);
    const auto kept = a.metadata.GetDocument(name);
    ASSERT_TRUE(kept.ok());
    EXPECT_EQ(kept->text, odd);
    EXPECT_TRUE(a.metadata.PutDocument(name, R"({"spec": {"quota": {}}})", kept->version).ok());
    cluster.Settle();
    EXPECT_EQ(PutEach(b, Keys(30)), 30);
  });
}

TEST(Quota, APolicyThatNobodyWouldFollowIsRefused) {
  Simulated(34, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    const auto set = [&](const std::string& tenant, const TenantPolicy& policy,
                         std::optional<uint64_t> version = std::nullopt) {
      return a.node().SetTenantPolicy(tenant, policy, version);
    };
    EXPECT_EQ(set("t", {.evict_within_tenant = true}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(set("", {.max_bytes = 1}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(set(std::string(1000, 't'), {.max_bytes = 1}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(set("\xff", {.max_bytes = 1}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(set("t", {.max_bytes = 1}, 5).code(), ErrorCode::kConflict);
    const auto first = set("t", {.max_bytes = 1}, 0);
    ASSERT_TRUE(first.ok()) << first.error().ToString();
    EXPECT_EQ(set("t", {.max_bytes = 2}, 0).code(), ErrorCode::kConflict);
    const auto second = set("t", {.max_bytes = 2}, *first);
    ASSERT_TRUE(second.ok());
    EXPECT_GT(*second, *first);
    EXPECT_EQ(a.node().GetTenantPolicy("t")->updated_by, "a:1");
  });
}

}  // namespace
}  // namespace mooncake::node

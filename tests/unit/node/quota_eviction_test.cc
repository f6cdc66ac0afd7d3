// Tenants whose own oldest values make room for their puts.
#include "node/quota_eviction.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/node/quotas.h"

namespace mooncake::node {
namespace {

Victim Of(uint64_t published_ms, uint64_t bytes, size_t from = 0) {
  return {.age = {.published_ms = published_ms, .version = published_ms, .hash = published_ms},
          .load = {bytes, 1},
          .from = from};
}

std::vector<uint64_t> Times(const std::vector<Victim>& victims) {
  std::vector<uint64_t> times;
  times.reserve(victims.size());
  for (const Victim& victim : victims) times.push_back(victim.age.published_ms);
  return times;
}

using Ms = std::vector<uint64_t>;

TEST(ChooseVictims, TakesTheOldestOfAllListsAndNoMoreThanNeeded) {
  const VictimList lists[] = {{{Of(1, 10), Of(5, 10), Of(6, 10)}}, {{Of(2, 10, 1), Of(3, 10, 1)}}};
  EXPECT_EQ(Times(ChooseVictims(lists, {1, 0})), Ms{1});
  EXPECT_EQ(Times(ChooseVictims(lists, {20, 0})), (Ms{1, 2}));
  EXPECT_EQ(Times(ChooseVictims(lists, {21, 1})), (Ms{1, 2, 3}));
  EXPECT_EQ(Times(ChooseVictims(lists, {0, 4})), (Ms{1, 2, 3, 5}));
  EXPECT_EQ(Times(ChooseVictims(lists, {50, 5})), (Ms{1, 2, 3, 5, 6}));
  EXPECT_EQ(ChooseVictims(lists, {20, 0})[1].from, 1u);
}

TEST(ChooseVictims, TakesNoneWhereAllAreNotEnough) {
  const VictimList lists[] = {{{Of(1, 10)}}, {{Of(2, 10, 1)}}};
  EXPECT_TRUE(ChooseVictims(lists, {21, 0}).empty());
  EXPECT_TRUE(ChooseVictims(lists, {1, 3}).empty());
  EXPECT_TRUE(ChooseVictims({}, {1, 0}).empty());
}

TEST(ChooseVictims, PassesOverWhatMakesNoRoom) {
  const VictimList lists[] = {{{Of(1, 0), Of(2, 10)}}};
  EXPECT_EQ(Times(ChooseVictims(lists, {5, 0})), Ms{2});
  EXPECT_EQ(Times(ChooseVictims(lists, {0, 1})), Ms{1});
}

TEST(ChooseVictims, GoesNoFurtherThanAListThatHasMore) {
  const VictimList lists[] = {{{Of(1, 10), Of(4, 10)}}, {{Of(2, 10, 1), Of(3, 10, 1)}, true}};
  EXPECT_EQ(Times(ChooseVictims(lists, {40, 0})), (Ms{1, 2, 3}));
  EXPECT_EQ(Times(ChooseVictims(lists, {100, 0})), (Ms{1, 2, 3}));
}

TEST(ChooseVictims, TakesWhatIsPinnedLast) {
  VictimList list{{Of(1, 10), Of(2, 10), Of(3, 10), Of(4, 10)}};
  list.victims[0].age.soft_pin = true;
  list.victims[1].in_use = true;
  const VictimList lists[] = {list};
  EXPECT_EQ(Times(ChooseVictims(lists, {40, 0})), (Ms{3, 4, 2, 1}));
}

void SetEvicting(TestNode& node, std::optional<uint64_t> bytes,
                 std::optional<uint64_t> objects = std::nullopt) {
  const auto version = node.node().SetTenantPolicy(
      kTenant, {.max_bytes = bytes, .max_objects = objects, .evict_within_tenant = true},
      std::nullopt);
  ASSERT_TRUE(version.ok()) << version.error().ToString();
}

// One after the other, at different times.
void PutInOrder(TestCluster& cluster, TestNode& writer, const std::vector<std::string>& keys,
                const ReplicateConfig* policy = nullptr) {
  for (const std::string& key : keys) {
    const Status status = writer.Put(key, ValueOf(key, kSize), policy);
    EXPECT_TRUE(status.ok()) << key << ": " << status.error().ToString();
    cluster.runtime().SleepMs(2);
  }
}

// Which of the keys are there, as their numbers.
std::vector<int> There(TestNode& reader, const std::vector<std::string>& keys) {
  std::vector<int> there;
  const auto found = reader.ExistAll(keys);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (*found[i] == Existence::kPresent) there.push_back(static_cast<int>(i));
  }
  return there;
}

std::vector<int> Numbers(int first, int end) {
  std::vector<int> numbers;
  for (int i = first; i < end; ++i) numbers.push_back(i);
  return numbers;
}

TEST(QuotaEviction, TheOldestOfAllNodesGoAndNobodyElses) {
  const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
  const ReplicateConfig local{.prefer_local = true};
  const ReplicateConfig* policies[] = {nullptr, &two, &local};
  for (uint64_t seed = 0; seed < 3; ++seed) {
    Simulated(60 + seed, [&](TestCluster& cluster) {
      auto& a = cluster.Start("a");
      auto& b = cluster.Start("b");
      auto& client = cluster.Start("client", 0);
      const ReplicateConfig* policy = policies[seed];
      const uint64_t copies = policy == nullptr ? 1 : policy->replica_num;
      const uint64_t quota = 20 * kSize * copies;
      for (const Status& status : PutAs(a, "other", Keys(50))) EXPECT_TRUE(status.ok());
      SetEvicting(a, quota);
      const auto keys = Keys(60);
      TestNode* writers[] = {&a, &b, &client};
      for (int i = 0; i < 60; ++i) {
        PutInOrder(cluster, *writers[i % 3], {keys[i]}, policy);
        EXPECT_LE(Total({&a, &b}).used.bytes, quota);
        EXPECT_LE(Total({&a, &b}).granted.bytes, quota);
      }
      EXPECT_EQ(There(client, keys), Numbers(40, 60));
      EXPECT_EQ(Total({&a, &b}).used, (Load{quota, 20}));
      EXPECT_EQ(Total({&a, &b}).pending, Load{});
      for (int i = 40; i < 60; ++i)
        EXPECT_EQ(client.Get(keys[i]).value_or(""), ValueOf(keys[i], kSize));
      const auto missed = client.Find(keys[0]);
      ASSERT_FALSE(missed.ok());
      EXPECT_EQ(missed.error().reason, ErrorReason::kEvicted);
      for (const Status& status : PutAs(b, "other", Keys(50))) EXPECT_TRUE(status.ok());
      cluster.Settle();  // The bytes go as well.
      EXPECT_EQ(a.UsedBytes() + b.UsedBytes(), (50 + 20 * copies) * 1024);
    });
  }
}

TEST(QuotaEviction, CountsKeysAsWell) {
  Simulated(64, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, std::nullopt, 7);
    PutInOrder(cluster, b, Keys(20));
    EXPECT_EQ(There(a, Keys(20)), Numbers(13, 20));
    PutInOrder(cluster, a, {"key-13"});  // It is the newest now, and not one more.
    EXPECT_EQ(There(a, Keys(20)), Numbers(13, 20));
    PutInOrder(cluster, b, {"new"});
    EXPECT_EQ(There(a, Keys(20)), (std::vector<int>{13, 15, 16, 17, 18, 19}));
  });
}

TEST(QuotaEviction, WhatIsLargerThanTheQuotaIsRefusedAndNothingGoes) {
  Simulated(65, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, 10 * kSize);
    PutInOrder(cluster, a, Keys(10));
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    for (const auto& [size, policy] :
         std::initializer_list<std::pair<uint64_t, const ReplicateConfig*>>{
             {10 * kSize + 1, nullptr}, {6 * kSize, &two}}) {
      for (const std::string key : {"large", "key-0"}) {
        const Status status = b.Put(key, ValueOf(key, size), policy);
        EXPECT_EQ(status.code(), ErrorCode::kConflict);
        EXPECT_EQ(status.error().reason, ErrorReason::kOverQuota);
      }
    }
    EXPECT_EQ(There(a, Keys(10)), Numbers(0, 10));
    EXPECT_TRUE(b.Put("large", ValueOf("large", 10 * kSize)).ok());  // All others make room.
    EXPECT_EQ(There(a, Keys(10)), std::vector<int>{});
    EXPECT_EQ(a.Get("large").value_or(""), ValueOf("large", 10 * kSize));
    EXPECT_EQ(Total({&a, &b}).used, (Load{10 * kSize, 1}));
  });
}

TEST(QuotaEviction, AnOverwriteDoesNotRemoveItsOwnKey) {
  Simulated(66, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, 10 * kSize);
    PutInOrder(cluster, b, Keys(10, "first-"));
    const auto own = TestCluster::KeyAt(a, "a:1");
    PutInOrder(cluster, b, {own});
    Charge charge;
    Admission put{.may_block = true, .patient = true, .deadline_ms = a.Deadline()};
    // The whole quota: all others go, and it stays until its new value is there.
    PutInOrder(cluster, b, Keys(9, "first-"));
    EXPECT_EQ(Admit(a.core(), {a.Ref(own), 10 * kSize, 1, false}, put, &charge), kItemOk);
    EXPECT_EQ(There(a, Keys(10, "first-")), std::vector<int>{});
    EXPECT_EQ(a.Get(own).value_or(""), ValueOf(own, kSize));
    charge.Release();
    ASSERT_TRUE(a.Remove(own).ok());
    PutInOrder(cluster, b, Keys(10));
    ASSERT_TRUE(b.Put("key-0", ValueOf("key-0", 3 * kSize, 1)).ok());
    EXPECT_EQ(There(a, Keys(10)), (std::vector<int>{0, 3, 4, 5, 6, 7, 8, 9}));
    EXPECT_EQ(a.Get("key-0").value_or(""), ValueOf("key-0", 3 * kSize, 1));
  });
}

TEST(QuotaEviction, WhatIsReadOrSoftPinnedGoesLast) {
  Simulated(67, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, 10 * kSize);
    const ReplicateConfig pinned{.with_soft_pin = true};
    const auto keys = TestCluster::KeysAt(a, "a:1", 10);
    PutInOrder(cluster, a, {keys[0]}, &pinned);
    PutInOrder(cluster, a, std::vector<std::string>(keys.begin() + 1, keys.end()));
    ExtentPin read;
    ASSERT_EQ(a.core().routes.Lookup(a.Ref(keys[1]), nullptr, &read), kItemOk);
    PutInOrder(cluster, b, Keys(8, "new-"));
    EXPECT_EQ(There(b, keys), Numbers(0, 2));
    ASSERT_TRUE(b.Put("large", ValueOf("large", 9 * kSize)).ok());
    EXPECT_EQ(There(b, keys), Numbers(0, 1));
    ASSERT_TRUE(b.Put("large", ValueOf("large", 10 * kSize)).ok());
    EXPECT_EQ(There(b, keys), std::vector<int>{});
    read = {};
  });
}

TEST(QuotaEviction, AgesComeAlongWithTheSlots) {
  Simulated(68, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetEvicting(a, 40 * kSize);
    PutInOrder(cluster, a, Keys(40));
    auto& b = cluster.Start("b");  // Takes half of the keys over.
    EXPECT_GT(Total({&b}).used.objects, 0u);
    auto& c = cluster.Start("c");
    cluster.Settle();
    PutInOrder(cluster, c, Keys(10, "new-"));
    EXPECT_EQ(There(a, Keys(40)), Numbers(10, 40));
    b.Close();
    for (TestNode* node : {&a, &c}) node->core().membership.RefreshTo(0, a.Deadline());
    PutInOrder(cluster, c, Keys(10, "last-"));
    EXPECT_EQ(Stored(a, Keys(10, "last-")), 10u);
    EXPECT_EQ(Stored(a, Keys(10, "new-")), Stored(c, Keys(10, "new-")));
    const auto left = There(a, Keys(40));
    EXPECT_LE(Total({&a, &c}).used.bytes, 40 * kSize);
    // From the old end, save for what went with the node.
    for (const int number : left) EXPECT_GE(number, 10);
  });
}

TEST(QuotaEviction, AgesAreKnownToMirrorsWhereAnAuthorityDies) {
  Simulated(74, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, 40 * kSize);
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    PutInOrder(cluster, b, Keys(20), &two);
    cluster.Settle();
    ASSERT_GT(Total({&a}).used.objects, 5u);
    cluster.Kill(a);
    cluster.runtime().SleepMs(15'000);
    b.core().membership.RefreshTo(0, b.Deadline());
    ASSERT_EQ(There(b, Keys(20)), Numbers(0, 20));
    EXPECT_EQ(Total({&b}).used, (Load{20 * kSize, 20}));  // Of one copy each, now.
    PutInOrder(cluster, b, Keys(25, "new-"));
    EXPECT_EQ(There(b, Keys(20)), Numbers(5, 20));
  });
}

TEST(QuotaEviction, AMovedValueGetsNoYounger) {
  Simulated(69, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    SetEvicting(a, 3 * kSize);
    PutInOrder(cluster, a, Keys(3));
    const KeyRef ref = a.Ref("key-0");
    Route route;
    ExtentPin local;
    ASSERT_EQ(a.core().routes.Lookup(ref, &route, &local), kItemOk);
    Publication moved{.size = kSize,
                      .local = local,
                      .expected = route.version,
                      .published_ms = cluster.runtime().WallMs()};
    Superseded superseded;
    Version version = 0;
    ASSERT_EQ(a.core().routes.Publish(ref, std::move(moved), &version, &superseded), kItemOk);
    EXPECT_GT(version, route.version);
    local = {};
    PutInOrder(cluster, a, {"new"});
    EXPECT_EQ(There(a, Keys(3)), Numbers(1, 3));
  });
}

TEST(QuotaEviction, AQuotaBelowWhatIsStoredIsReachedWithTheNextPut) {
  Simulated(70, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    PutInOrder(cluster, a, Keys(40));  // Before there is a quota, nobody notes when.
    SetEvicting(b, 60 * kSize);
    PutInOrder(cluster, a, Keys(20, "new-"));
    SetEvicting(b, 10 * kSize);
    EXPECT_EQ(Stored(a, Keys(40)), 40u);
    a.transport.Take();
    b.transport.Take();
    PutInOrder(cluster, b, {"last"});
    EXPECT_LT(a.transport.Take().messages + b.transport.Take().messages, 20u) << "all at once";
    EXPECT_EQ(Stored(a, Keys(40)), 0u);
    EXPECT_EQ(There(a, Keys(20, "new-")), Numbers(11, 20));
    EXPECT_EQ(Total({&a, &b}).used, (Load{10 * kSize, 10}));
    SetQuota(a, 10 * kSize);  // It does not evict any more.
    EXPECT_EQ(PutEach(a, {"no"}), 0);
    SetEvicting(a, 10 * kSize);
    PutInOrder(cluster, a, {"yes"});
    EXPECT_EQ(There(a, Keys(20, "new-")), Numbers(12, 20));
  });
}

TEST(QuotaEviction, ManySmallValuesMakeRoomForALargeOne) {
  Simulated(71, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    SetEvicting(a, 300'000);
    std::vector<std::string> keys = Keys(2'500);
    for (const Status& status : b.PutAll(keys, 100)) ASSERT_TRUE(status.ok());
    cluster.runtime().SleepMs(5);
    ASSERT_TRUE(a.Put("large", ValueOf("large", 290'000)).ok());
    EXPECT_EQ(Stored(a, keys), 100u);
    EXPECT_EQ(Total({&a, &b}).used, (Load{300'000, 101}));
  });
}

TEST(QuotaEviction, ConcurrentPutsAllFindRoom) {
  Simulated(72, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& b = cluster.Start("b");
    auto& client = cluster.Start("client", 0);
    SetEvicting(a, 50 * kSize);
    const ReplicateConfig two{.replica_num = 2, .prefer_local = false};
    std::atomic<int> accepted = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    TestNode* writers[] = {&a, &b, &client};
    threads.reserve(6);
    for (int i = 0; i < 6; ++i) {
      threads.push_back(cluster.runtime().Spawn("writer", [&, i] {
        const auto keys = Keys(40, std::to_string(i) + "-");
        for (const std::string& key : keys) {
          const Status status =
              writers[i % 3]->Put(key, ValueOf(key, kSize), i == 0 ? &two : nullptr);
          EXPECT_TRUE(status.ok()) << key << ": " << status.error().ToString();
          accepted += status.ok();
        }
      }));
    }
    bool over = false;
    for (int i = 0; i < 200; ++i) {
      over = over || Total({&a, &b}).used.bytes > 50 * kSize;
      cluster.runtime().SleepMs(1);
    }
    for (auto& thread : threads) thread->Join();
    EXPECT_FALSE(over);
    EXPECT_EQ(accepted, 240);
    const Load used = Total({&a, &b}).used;
    EXPECT_LE(used.bytes, 50 * kSize);
    EXPECT_GE(used.bytes, 40 * kSize) << "no more goes than has to";
    EXPECT_EQ(Total({&a, &b}).pending, Load{});
  });
}

TEST(QuotaEviction, PeersAreToldOnlyWhatTheyAskFor) {
  Simulated(73, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    auto& client = cluster.Start("client", 0);
    SetEvicting(a, 10 * kSize);
    PutInOrder(cluster, client, Keys(10));
    v1::QuotaSurveyRequest request;
    client.core().peers.FillOrigin(false, request.mutable_origin());
    request.set_tenant(kTenant);
    const ViewPtr view = client.core().view();
    const auto ask = [&] {
      const auto reply = client.core().peers.Ask<v1::QuotaSurveyReply>(
          view->node(view->FindName("a:1")), MessageType::kQuotaSurvey, request, client.Deadline());
      EXPECT_TRUE(reply.ok());
      return reply.ok() ? *reply : v1::QuotaSurveyReply();
    };
    EXPECT_EQ(ask().oldest_size(), 0);  // As one asks that does not know.
    request.mutable_missing()->set_objects(3);
    request.set_spared(client.Ref("key-1").hash);
    const v1::QuotaSurveyReply reply = ask();
    ASSERT_EQ(reply.oldest_size(), 3);
    EXPECT_FALSE(reply.more());
    EXPECT_EQ(reply.oldest(0).hash(), client.Ref("key-0").hash);
    EXPECT_EQ(reply.oldest(1).hash(), client.Ref("key-2").hash);
    // What was overwritten since stays.
    PutInOrder(cluster, client, {"key-0"});
    for (const v1::Aged& aged : reply.oldest()) *request.add_evict() = aged;
    EXPECT_EQ(ask().standing().granted().objects(), 8u);
    EXPECT_EQ(There(client, Keys(10)), (std::vector<int>{0, 1, 4, 5, 6, 7, 8, 9}));
    SetQuota(a, 10 * kSize);
    request.mutable_evict()->Mutable(0)->set_hash(client.Ref("key-4").hash);
    EXPECT_EQ(ask().oldest_size(), 0);
    EXPECT_EQ(Stored(client, Keys(10)), 8u);
  });
}

}  // namespace
}  // namespace mooncake::node

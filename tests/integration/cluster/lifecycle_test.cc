// Draining, evacuation, segments and handover, with several stores in one process.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "mooncake/store.h"

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

std::unique_ptr<Store> Open(const std::string& cluster, const std::string& stable_id,
                            const std::string& state = "active",
                            uint64_t segment_bytes = 32 * kMiB) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://" + cluster;
  config.stable_id = stable_id;
  config.initial_state = state;
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  config.request_timeout_ms = 10'000;
  auto store = Store::Open(config);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return store.ok() ? *std::move(store) : nullptr;
}

std::string KeyOf(int i) { return "key-" + std::to_string(i); }
std::string ValueOf(int i) { return std::string(10'000 + i, static_cast<char>('a' + i % 26)); }

void Fill(Store& store, int count) {
  for (int i = 0; i < count; ++i) ASSERT_TRUE(store.Put(KeyOf(i), BytesOf(ValueOf(i))).ok());
}

void ExpectAll(Store& store, int count) {
  for (int i = 0; i < count; ++i) EXPECT_TRUE(store.Get(KeyOf(i)).value_or("") == ValueOf(i)) << i;
}

uint64_t UsedBytes(Store& store) {
  uint64_t used = 0;
  for (const SegmentInfo& info : store.ListSegments(false)) used += info.used_bytes;
  return used;
}

TEST(Lifecycle, AStoreWithASegmentBelowOnePageIsNotOpened) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://small";
  config.global_segment_size = 4'095;
  const auto store = Store::Open(config);
  ASSERT_EQ(store.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(store.error().context.find("global_segment_size is 4095"), std::string::npos);
}

TEST(Lifecycle, AStoreWithALeaseThatNoServiceKeepsIsNotOpened) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://lease";
  for (const uint64_t lease_ms : {uint64_t{0}, uint64_t{604'800'001}}) {
    config.lease_ttl_ms = lease_ms;
    const auto store = Store::Open(config);
    ASSERT_EQ(store.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(store.error().context, "lease_ttl_ms is " + std::to_string(lease_ms) +
                                         ", allowed are 1 to 604800000 (seven days)");
  }
}

TEST(Lifecycle, AStoreWithALabelThatMakesNoSenseIsNotOpened) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://labels";
  config.routed_writes = true;
  for (const auto& [name, text] : std::map<std::string, std::string>{
           {"route_weight", "-1"}, {"storage", "perhaps"}, {"route", "perhaps"}}) {
    config.labels = {{name, text}};
    const auto store = Store::Open(config);
    ASSERT_EQ(store.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(store.error().context.find("label " + name + " is \"" + text), std::string::npos)
        << store.error().context;
  }
}

TEST(Lifecycle, AStoreThatIsToStoreAndHasNoSegmentIsNotOpened) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://no-segment";
  config.routed_writes = true;
  config.labels = {{"storage", "TRUE"}};
  const auto store = Store::Open(config);
  ASSERT_EQ(store.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store.error().context,
            "global_segment_size is \"0\"; allowed: more than 0, as the label storage is true");
  config.labels.clear();  // A client.
  const auto client = Store::Open(config);
  EXPECT_TRUE(client.ok()) << client.error().ToString();
}

TEST(Lifecycle, EvacuationMovesEverythingToOtherOwners) {
  auto a = Open("evacuate", "a");
  auto b = Open("evacuate", "b");
  Fill(*a, 200);
  const uint64_t total = UsedBytes(*a) + UsedBytes(*b);
  const auto moved = a->EvacuateOwnedReplicas();
  ASSERT_TRUE(moved.ok()) << moved.error().ToString();
  EXPECT_GT(*moved, 0u);
  EXPECT_EQ(UsedBytes(*a), 0u);
  EXPECT_EQ(UsedBytes(*b), total);
  ExpectAll(*a, 200);
  a->Close();
  ExpectAll(*b, 200);
}

TEST(Lifecycle, EvacuationWithNowhereToGoSaysWhatRemainsAndLosesNothing) {
  auto a = Open("nowhere", "a");
  Fill(*a, 20);
  const auto moved = a->EvacuateOwnedReplicas();
  ASSERT_FALSE(moved.ok());
  EXPECT_NE(moved.error().context.find("not enough writable placement targets"), std::string::npos);
  EXPECT_NE(moved.error().context.find("20 objects"), std::string::npos);
  EXPECT_NE(moved.error().context.find("no other storage node is active"), std::string::npos);
  ExpectAll(*a, 20);
}

TEST(Lifecycle, ADrainingNodeServesReadsAndTakesNoCopies) {
  auto a = Open("draining", "a");
  auto b = Open("draining", "b");
  Fill(*b, 100);
  EXPECT_EQ(a->ListSegments(false)[0].state, "Active");
  ASSERT_TRUE(a->SetState("draining").ok());
  EXPECT_EQ(a->ListSegments(false)[0].state, "Draining");
  for (const SegmentInfo& segment : b->ListSegments(true)) {
    EXPECT_EQ(segment.state, segment.owner == "a:1" ? "Draining" : "Active");
  }
  const uint64_t used = UsedBytes(*a);
  for (int i = 100; i < 150; ++i) ASSERT_TRUE(b->Put(KeyOf(i), BytesOf(ValueOf(i))).ok());
  EXPECT_EQ(UsedBytes(*a), used);
  ExpectAll(*b, 150);
  ASSERT_TRUE(a->SetState("active").ok());
  EXPECT_EQ(a->ListSegments(false)[0].state, "Active");
}

TEST(Lifecycle, WhereNobodyIsActiveTheDrainingOnesOrThoseThatStandByServeReadsAndRemovals) {
  for (const std::string state : {"draining", "standby"}) {
    SCOPED_TRACE(state);
    std::vector<std::unique_ptr<Store>> owners;
    for (const char* name : {"a", "b", "c"}) owners.push_back(Open("all-" + state, name));
    auto reader = Open("all-" + state, "r", "active", 0);
    Fill(*reader, 150);
    for (auto& owner : owners) ASSERT_TRUE(owner->SetState(state).ok());
    ASSERT_TRUE(reader->SetState("active").ok());  // As before, but it looks at the membership.
    ExpectAll(*reader, 150);
    ExpectAll(*owners[1], 150);
    EXPECT_TRUE(reader->Exists(KeyOf(3)).value_or(false));
    EXPECT_EQ(reader->Get("unknown").code(), ErrorCode::kNotFound);
    EXPECT_TRUE(reader->Remove(KeyOf(149)).ok());
    for (Store* writer : {reader.get(), owners[0].get()}) {
      const Status refused = writer->Put("new", BytesOf(ValueOf(1)));
      ASSERT_EQ(refused.code(), ErrorCode::kNoSpace);
      EXPECT_NE(refused.error().context.find("no storage node is active"), std::string::npos)
          << refused.error().ToString();
    }
    // Of a node that comes they learn, and it of their values.
    auto late = Open("all-" + state, "late", "active", 0);
    ExpectAll(*late, 149);
    ASSERT_TRUE(owners[2]->SetState("active").ok());
    ExpectAll(*reader, 149);
    for (auto& owner : owners) ASSERT_TRUE(owner->SetState("active").ok());
    for (int i = 149; i < 200; ++i) ASSERT_TRUE(late->Put(KeyOf(i), BytesOf(ValueOf(i))).ok());
    ExpectAll(*reader, 200);
    EXPECT_EQ(reader->Get("new").code(), ErrorCode::kNotFound);
  }
}

TEST(Lifecycle, ANewNodeTakesOverFromDrainingOnesAndTheyFromIt) {
  auto a = Open("all-but-one", "a");
  auto b = Open("all-but-one", "b");
  auto reader = Open("all-but-one", "r", "active", 0);
  Fill(*reader, 100);
  ASSERT_TRUE(a->SetState("draining").ok());
  ASSERT_TRUE(b->SetState("draining").ok());
  auto c = Open("all-but-one", "c");
  for (int i = 100; i < 120; ++i) ASSERT_TRUE(reader->Put(KeyOf(i), BytesOf(ValueOf(i))).ok());
  ExpectAll(*reader, 120);
  ASSERT_TRUE(c->SetState("draining").ok());
  ASSERT_TRUE(reader->SetState("active").ok());  // As before, but it looks at the membership.
  ExpectAll(*reader, 120);
  ASSERT_TRUE(a->SetState("active").ok());
  ASSERT_TRUE(c->EvacuateOwnedReplicas().ok());
  c->Close();
  ExpectAll(*reader, 120);
}

TEST(Lifecycle, OthersListWhatASegmentHoldsAHeartbeatLater) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://usage";
  config.lease_ttl_ms = 1'500;
  config.global_segment_size = 8 * kMiB;
  config.stable_id = "a";
  auto a = *Store::Open(config);
  config.stable_id = "b";
  auto b = *Store::Open(config);
  Fill(*a, 30);
  const auto listed = [&] {
    uint64_t used = 0;
    for (const SegmentInfo& info : b->ListSegments(true)) used += info.used_bytes;
    return used;
  };
  for (int i = 0; i < 1'000 && listed() != UsedBytes(*a); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(listed(), UsedBytes(*a));
  EXPECT_GT(UsedBytes(*a), 0u);
  a->Close();
  b->Close();
  EXPECT_TRUE(b->ListSegments(true).size() <= 1u);  // After that it is not asked.
}

TEST(Lifecycle, ASegmentIsAddedDrainedAndRetired) {
  auto a = Open("segments", "a");
  EXPECT_EQ(a->DrainSegment("a-segment").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(a->DrainSegment("other").code(), ErrorCode::kNotFound);
  const auto extra = a->ExpandLocalMemory(16 * kMiB);
  ASSERT_TRUE(extra.ok());
  EXPECT_EQ(extra->segment_name, "a-segment-ext-1");
  EXPECT_EQ(a->ListSegments(false).size(), 2u);
  Fill(*a, 100);
  EXPECT_EQ(a->RetireSegment("a-segment").code(), ErrorCode::kInvalidState);
  ASSERT_TRUE(a->DrainSegment("a-segment").ok());
  EXPECT_TRUE(a->RetireSegment("a-segment").value_or(false));
  EXPECT_EQ(a->ListSegments(false).size(), 1u);
  ExpectAll(*a, 100);
}

TEST(Lifecycle, AStandbySuccessorTakesOverWithoutLosingAKey) {
  auto old = Open("upgrade", "a");
  auto reader = Open("upgrade", "r");
  Fill(*old, 200);
  EXPECT_EQ(old->PlanHandoff({}, {}).code(), ErrorCode::kInvalidState);
  auto next = Open("upgrade", "a", "standby");
  EXPECT_EQ(next->NodeName(), "a:2");
  const auto plan = old->PlanHandoff({}, 5'000);
  ASSERT_TRUE(plan.ok()) << plan.error().ToString();
  EXPECT_EQ(plan->to_epoch, 2u);
  const uint64_t beside = reader->ListSegments(false)[0].used_bytes;
  const auto moved = old->EvacuateOwnedReplicas();
  ASSERT_TRUE(moved.ok()) << moved.error().ToString();
  // Everything went to the successor.
  EXPECT_EQ(reader->ListSegments(false)[0].used_bytes, beside);
  EXPECT_GT(next->ListSegments(false)[0].used_bytes, 0u);
  ExpectAll(*reader, 200);
  old->Close();
  ExpectAll(*reader, 200);
  ExpectAll(*next, 200);
}

}  // namespace
}  // namespace mooncake

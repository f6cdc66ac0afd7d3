#include "unit/metadata/contract.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

namespace mooncake::testing {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(MetadataContract);

LeaseRecord MetadataContract::Record(const std::string& stable_id) {
  LeaseRecord record;
  record.id.stable_id = stable_id;
  record.state = NodeState::kActive;
  record.endpoint = "10.0.0.1:4000";
  record.host = "boot-1";
  record.pid = 4242;
  record.instance = 7;
  record.labels = {{"route", "true"}, {"zone", "a b: {\"x\"} ü"}};
  record.segments = {{"seg-1", 1 << 30, 4096, NodeState::kActive},
                     {"seg-2", uint64_t{1} << 60, 0, NodeState::kDraining}};
  return record;
}

NodeId MetadataContract::MustAcquire(const std::string& stable_id) {
  Result<NodeId> id = store_->Acquire(Record(stable_id), kLongMs, std::nullopt, false);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().ToString());
  return id.value_or(NodeId{});
}

LeaseRecord MetadataContract::MustStandBeside(const NodeId& predecessor) {
  LeaseRecord record = Record(predecessor.stable_id);
  record.state = NodeState::kStandby;
  record.instance = 8;
  record.beside = predecessor.epoch;
  Result<NodeId> id = store_->Acquire(record, kLongMs, predecessor.epoch, false);
  EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().ToString());
  record.id = id.value_or(NodeId{});
  return record;
}

void MetadataContract::Lapse(const LeaseRecord& record) {
  EXPECT_TRUE(store_->Renew(record, kBriefMs).ok());
  world_->Pass(kBriefMs + 1);
}

uint64_t MetadataContract::Revision() {
  Result<uint64_t> revision = store_->Poll();
  EXPECT_TRUE(revision.ok()) << (revision.ok() ? "" : revision.error().ToString());
  return revision.value_or(0);
}

MembershipChanges MetadataContract::Changes(uint64_t since) {
  Result<MembershipChanges> changes = store_->ReadChanges(since);
  EXPECT_TRUE(changes.ok()) << (changes.ok() ? "" : changes.error().ToString());
  return changes.value_or(MembershipChanges{});
}

TEST_P(MetadataContract, AnEmptyServiceIsAnEmptyFullMembership) {
  EXPECT_EQ(Revision(), 0u);
  const MembershipChanges changes = Changes(0);
  EXPECT_TRUE(changes.full);
  EXPECT_THAT(changes.leases, IsEmpty());
}

TEST_P(MetadataContract, SuspicionIsSetOnceAndClearedByTheNode) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  const uint64_t before = Revision();
  EXPECT_TRUE(store_->ReportSuspect(record.id).ok());
  const uint64_t marked = Revision();
  EXPECT_GT(marked, before);
  ASSERT_THAT(Changes(before).leases, SizeIs(1));
  EXPECT_TRUE(Changes(before).leases[0].suspect);
  EXPECT_TRUE(store_->ReportSuspect(record.id).ok());
  EXPECT_TRUE(store_->ReportSuspect({"n", 5}).ok());
  EXPECT_EQ(Revision(), marked);

  Result<RenewResult> renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_TRUE(renewed->was_suspect);
  EXPECT_GT(renewed->revision, marked);
  EXPECT_THAT(Changes(marked).leases, ElementsAre(record));
  EXPECT_FALSE(store_->Renew(record, kLongMs).value_or({}).was_suspect);
}

TEST_P(MetadataContract, ChangesComeOnceAndUnknownRevisionsGetEverything) {
  MustAcquire("a");
  const uint64_t first = Revision();
  const NodeId b = MustAcquire("b");
  const MembershipChanges changes = Changes(first);
  EXPECT_FALSE(changes.full);
  ASSERT_THAT(changes.leases, SizeIs(1));
  EXPECT_EQ(changes.leases[0].id, b);
  EXPECT_THAT(Changes(changes.revision).leases, IsEmpty());
  for (const uint64_t unknown : {uint64_t{0}, uint64_t{1}, changes.revision + 1, UINT64_MAX}) {
    EXPECT_TRUE(Changes(unknown).full) << unknown;
    EXPECT_THAT(Changes(unknown).leases, SizeIs(2)) << unknown;
  }
}

TEST_P(MetadataContract, ALongForgottenRevisionGetsEverything) {
  const NodeId keeper = MustAcquire("keeper");
  const uint64_t old = Revision();
  uint64_t recent = 0;
  for (int i = 0; i < 1010; ++i) {
    ASSERT_TRUE(store_->Release(MustAcquire("n" + std::to_string(i)), 0).ok());
    if (i == 1000) recent = Revision();
  }
  EXPECT_TRUE(Changes(old).full);
  ASSERT_THAT(Changes(old).leases, SizeIs(1));
  EXPECT_EQ(Changes(old).leases[0].id, keeper);
  EXPECT_FALSE(Changes(recent).full);
  EXPECT_THAT(Changes(recent).gone, SizeIs(9));
}

TEST_P(MetadataContract, SurvivorsRebuildAServiceThatForgot) {
  LeaseRecord record = Record("n");
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(store_->Release(record.id, 0).ok());
    record.id = MustAcquire("n");
  }
  const uint64_t known = Revision();
  world_->Pass(5);
  world_->Forget();
  EXPECT_EQ(Revision(), 0u);
  EXPECT_TRUE(Changes(known).full);
  EXPECT_THAT(Changes(known).leases, IsEmpty());

  Result<RenewResult> renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_TRUE(renewed->recreated);
  EXPECT_GT(renewed->revision, known);
  // Larger than the reader's, and yet no continuation of it.
  EXPECT_TRUE(Changes(known).full);
  EXPECT_THAT(Changes(known).leases, ElementsAre(record));
  EXPECT_TRUE(store_->Release(record.id, 0).ok());
  EXPECT_EQ(MustAcquire("n").epoch, 4u);
}

TEST_P(MetadataContract, TheFirstRoutePolicyStays) {
  RoutePolicy policy{.route_topk = 3,
                     .route_control = "metadata_only",
                     .slot_bits = 18,
                     .created_by = "a:1",
                     .created_at_ms = 17};
  Result<RoutePolicy> first = store_->PutRoutePolicyIfAbsent(policy);
  ASSERT_TRUE(first.ok()) << first.error().ToString();
  EXPECT_EQ(first->route_topk, 3u);
  Result<RoutePolicy> second = world_->Connect("ks")->PutRoutePolicyIfAbsent(RoutePolicy{});
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(second->route_topk, 3u);
  EXPECT_EQ(second->route_control, "metadata_only");
  EXPECT_EQ(second->slot_bits, 18u);
  EXPECT_EQ(second->created_by, "a:1");
  EXPECT_EQ(second->created_at_ms, 17u);
}

TEST_P(MetadataContract, DocumentsAreComparedAndSwapped) {
  EXPECT_EQ(store_->GetDocument("d").value_or({7, "x"}).version, 0u);
  EXPECT_EQ(store_->PutDocument("d", "one", 5).code(), ErrorCode::kConflict);
  Result<uint64_t> first = store_->PutDocument("d", "one", 0);
  ASSERT_TRUE(first.ok()) << first.error().ToString();
  EXPECT_GT(*first, 0u);
  EXPECT_EQ(store_->PutDocument("d", "two", 0).code(), ErrorCode::kConflict);
  const std::string odd("two \n\0 \xff", 9);
  Result<uint64_t> second = store_->PutDocument("d", odd, *first);
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_GT(*second, *first);
  EXPECT_EQ(store_->GetDocument("d").value_or({}).text, odd);
  EXPECT_EQ(store_->GetDocument("d").value_or({}).version, *second);

  EXPECT_EQ(store_->PutDocument("d", "", *second).value_or(9), 0u);
  EXPECT_EQ(store_->GetDocument("d").value_or({7, "x"}).text, "");
  // A version that somebody still holds does not come back.
  EXPECT_GT(store_->PutDocument("d", "three", 0).value_or(0), *second);
  EXPECT_EQ(store_->PutDocument("", "x", 0).code(), ErrorCode::kInvalidArgument);
}

TEST_P(MetadataContract, DocumentsAreListedByThePrefixOfTheirNames) {
  for (const char* name : {"p/b", "p/a", "p", "q/a", "p_x"}) {
    ASSERT_TRUE(store_->PutDocument(name, std::string("text of ") + name, 0).ok());
  }
  ASSERT_TRUE(world_->Connect("other")->PutDocument("p/c", "x", 0).ok());
  const auto listed = store_->ListDocuments("p/");
  ASSERT_TRUE(listed.ok()) << listed.error().ToString();
  ASSERT_THAT(*listed, SizeIs(2));
  EXPECT_EQ((*listed)[0].name, "p/a");
  EXPECT_EQ((*listed)[1].name, "p/b");
  EXPECT_EQ((*listed)[1].document.text, "text of p/b");
  EXPECT_EQ((*listed)[1].document.version, store_->GetDocument("p/b").value_or({}).version);
  ASSERT_TRUE(store_->PutDocument("p/a", "", (*listed)[0].document.version).ok());
  EXPECT_THAT(store_->ListDocuments("p/").value_or({}), SizeIs(1));
  EXPECT_THAT(store_->ListDocuments("nobody/").value_or({{"x", {}}}), SizeIs(0));
  EXPECT_EQ(store_->ListDocuments("").code(), ErrorCode::kInvalidArgument);
}

TEST_P(MetadataContract, AChangeOfAWatchedDocumentIsAChangeOfTheMembership) {
  MustAcquire("n");
  const uint64_t before = store_->Poll().value_or(0);
  ASSERT_TRUE(store_->PutDocument("d", "x", 0).ok());
  EXPECT_EQ(store_->Poll().value_or(0), before);
  const auto put = store_->PutDocument("system/d", "x", 0);
  ASSERT_TRUE(put.ok()) << put.error().ToString();
  const uint64_t after = store_->Poll().value_or(0);
  EXPECT_GT(after, before);
  const MembershipChanges changes = Changes(before);
  EXPECT_EQ(changes.revision, after);
  EXPECT_FALSE(changes.full);
  EXPECT_THAT(changes.leases, SizeIs(0));
  EXPECT_EQ(store_->PutDocument("system/d", "y", 1).code(), ErrorCode::kConflict);
  EXPECT_EQ(store_->Poll().value_or(0), after);
  EXPECT_TRUE(store_->PutDocument("system/d", "", *put).ok());
  EXPECT_GT(store_->Poll().value_or(0), after);
}

TEST_P(MetadataContract, KeyspacesAreSeparate) {
  MustAcquire("n");
  std::unique_ptr<MetadataStore> other = world_->Connect("other");
  EXPECT_EQ(other->Poll().value_or(1), 0u);
  Result<NodeId> id = other->Acquire(Record("n"), kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  EXPECT_EQ(id->epoch, 1u);
  ASSERT_TRUE(other->PutDocument("d", "x", 0).ok());
  EXPECT_EQ(store_->GetDocument("d").value_or({7, "x"}).version, 0u);
}

TEST_P(MetadataContract, OneOfManyRacingAcquiresWins) {
  constexpr int kThreads = 8;
  constexpr int kRounds = 10;
  std::vector<std::unique_ptr<MetadataStore>> handles;
  for (int i = 0; i < kThreads; ++i) handles.push_back(world_->Connect("ks"));
  for (int round = 0; round < kRounds; ++round) {
    std::atomic<int> won = 0;
    std::atomic<int> lost = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const LeaseRecord record = Record("n" + std::to_string(round));
        const auto id = handles[i]->Acquire(record, kLongMs, std::nullopt, false);
        if (id.ok()) ++won;
        if (id.code() == ErrorCode::kConflict) ++lost;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    EXPECT_EQ(lost, kThreads - 1);
  }
}

TEST_P(MetadataContract, OneHandleServesManyThreads) {
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  std::atomic<int> failed = 0;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      LeaseRecord record = Record("t" + std::to_string(i));
      Result<NodeId> id = store_->Acquire(record, kLongMs, std::nullopt, false);
      if (!id) ++failed;
      record.id = id.value_or(record.id);
      for (uint64_t used = 0; used < 20; ++used) {
        record.segments[0].used_bytes = used;
        if (!store_->Renew(record, kLongMs) || !store_->Poll()) ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0);
  EXPECT_THAT(Changes(0).leases, SizeIs(kThreads));
}

}  // namespace mooncake::testing

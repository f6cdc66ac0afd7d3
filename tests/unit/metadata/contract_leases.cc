// The contract of a lease: how one is got, renewed, left and taken over.
#include <gmock/gmock.h>

#include "unit/metadata/contract.h"

namespace mooncake::testing {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

TEST_P(MetadataContract, AcquireGivesTheFirstEpochAndShowsTheWholeRecord) {
  LeaseRecord record = Record("n:1");
  record.id.epoch = 77;   // Ignored.
  record.suspect = true;  // Not for a node to say.
  Result<NodeId> id = store_->Acquire(record, kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  EXPECT_EQ(id->ToString(), "n:1:1");
  record.id = *id;
  record.suspect = false;
  EXPECT_THAT(Changes(0).leases, ElementsAre(record));
}

TEST_P(MetadataContract, OddTextSurvivesAndTextThatIsNotUtf8IsRefused) {
  LeaseRecord record = Record("id with space:{}\n\xc3\xbc");
  record.labels["empty"] = "";
  Result<NodeId> id = store_->Acquire(record, kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  record.id = *id;
  EXPECT_THAT(Changes(0).leases, ElementsAre(record));
  record.host = "\xff\xfe";
  EXPECT_EQ(store_->Renew(record, kLongMs).code(), ErrorCode::kInvalidArgument);
}

TEST_P(MetadataContract, WrongArgumentsAreRefused) {
  const LeaseRecord nameless = Record("");
  EXPECT_EQ(store_->Acquire(nameless, kLongMs, std::nullopt, false).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->Acquire(Record("n"), 0, std::nullopt, false).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->Renew(Record("n"), kLongMs).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(Revision(), 0u);
}

TEST_P(MetadataContract, ALiveHolderIsAConflictThatNamesIt) {
  MustAcquire("n");
  Result<NodeId> second = store_->Acquire(Record("n"), kLongMs, std::nullopt, false);
  ASSERT_EQ(second.code(), ErrorCode::kConflict);
  EXPECT_THAT(second.error().context, HasSubstr("n:1 at 10.0.0.1:4000"));
  // Naming another epoch than the holder's does not help.
  EXPECT_EQ(store_->Acquire(Record("n"), kLongMs, 2, true).code(), ErrorCode::kConflict);
}

TEST_P(MetadataContract, ASuccessorLivesBesideItsPredecessor) {
  LeaseRecord first = Record("n");
  first.id = MustAcquire("n");
  Result<NodeId> second = store_->Acquire(Record("n"), kLongMs, 1, false);
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(second->epoch, 2u);
  EXPECT_THAT(Changes(0).leases, SizeIs(2));
  // The predecessor goes on renewing while it drains, and a third has nobody to stand beside.
  EXPECT_TRUE(store_->Renew(first, kLongMs).ok());
  EXPECT_EQ(store_->Acquire(Record("n"), kLongMs, 1, false).code(), ErrorCode::kConflict);
  EXPECT_TRUE(store_->Release(first.id, 0).ok());
  EXPECT_EQ(store_->Renew(first, kLongMs).code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(Changes(0).leases, SizeIs(1));
}

TEST_P(MetadataContract, ReplaceEndsTheOldLeaseAtOnce) {
  LeaseRecord first = Record("n");
  first.id = MustAcquire("n");
  const uint64_t before = Revision();
  Result<NodeId> second = store_->Acquire(Record("n"), kLongMs, 1, true);
  ASSERT_TRUE(second.ok()) << second.error().ToString();
  EXPECT_EQ(second->epoch, 2u);
  const MembershipChanges changes = Changes(before);
  EXPECT_FALSE(changes.full);
  EXPECT_THAT(changes.gone, ElementsAre(first.id));
  ASSERT_THAT(changes.leases, SizeIs(1));
  EXPECT_EQ(changes.leases[0].id, *second);
  Result<RenewResult> late = store_->Renew(first, kLongMs);
  ASSERT_EQ(late.code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(late.error().context, HasSubstr("n:2"));
}

TEST_P(MetadataContract, EpochsGrowAcrossReleaseAndLapse) {
  const NodeId first = MustAcquire("n");
  EXPECT_TRUE(store_->Release(first, 0).ok());
  LeaseRecord second = Record("n");
  second.id = MustAcquire("n");
  EXPECT_EQ(second.id.epoch, 2u);
  Lapse(second);
  EXPECT_EQ(MustAcquire("n").epoch, 3u);
  EXPECT_EQ(MustAcquire("other").epoch, 1u);
}

TEST_P(MetadataContract, RenewBumpsOnlyForWhatOthersActOn) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  const uint64_t before = Revision();
  record.segments[0].used_bytes = 12345;
  Result<RenewResult> renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_EQ(renewed->revision, before);
  EXPECT_FALSE(renewed->recreated);
  EXPECT_FALSE(renewed->was_suspect);
  EXPECT_THAT(Changes(0).leases, ElementsAre(record));
  EXPECT_THAT(Changes(before).leases, IsEmpty());

  record.state = NodeState::kDraining;
  renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_GT(renewed->revision, before);
  EXPECT_EQ(renewed->revision, Revision());
  EXPECT_THAT(Changes(before).leases, ElementsAre(record));
}

TEST_P(MetadataContract, RenewExtendsTheLease) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  ASSERT_TRUE(store_->Renew(record, kLongMs).ok());
  world_->Pass(kBriefMs + 1);
  EXPECT_THAT(Changes(0).leases, SizeIs(1));
}

TEST_P(MetadataContract, PollEndsLapsedLeasesEachAsAChange) {
  LeaseRecord a = Record("a");
  LeaseRecord b = Record("b");
  a.id = MustAcquire("a");
  b.id = MustAcquire("b");
  MustAcquire("c");
  const uint64_t before = Revision();
  EXPECT_TRUE(store_->Renew(a, kBriefMs).ok());
  Lapse(b);
  EXPECT_GE(Revision(), before + 2);
  const MembershipChanges changes = Changes(before);
  EXPECT_FALSE(changes.full);
  EXPECT_THAT(changes.gone, UnorderedElementsAre(a.id, b.id));
  EXPECT_THAT(changes.leases, IsEmpty());
  EXPECT_EQ(Revision(), Revision());
}

TEST_P(MetadataContract, ReadChangesEndsLapsedLeasesToo) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  const uint64_t before = Revision();
  Lapse(record);
  EXPECT_THAT(Changes(before).gone, ElementsAre(record.id));
}

TEST_P(MetadataContract, RenewRecreatesALapsedLease) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  Lapse(record);
  const uint64_t lapsed = Revision();
  Result<RenewResult> renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_TRUE(renewed->recreated);
  EXPECT_GT(renewed->revision, lapsed);
  const MembershipChanges changes = Changes(lapsed);
  EXPECT_THAT(changes.leases, ElementsAre(record));
  EXPECT_THAT(changes.gone, IsEmpty());
}

TEST_P(MetadataContract, RenewAfterASuccessorLivedIsStale) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  Lapse(record);
  EXPECT_TRUE(store_->Release(MustAcquire("n"), 0).ok());
  Result<RenewResult> late = store_->Renew(record, kLongMs);
  ASSERT_EQ(late.code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(late.error().context, HasSubstr("n:2"));
}

TEST_P(MetadataContract, AStandbyDoesNotKeepItsPredecessorFromRepairingItsLease) {
  LeaseRecord record = Record("n");
  record.labels = {{"beside", "9"}, {"x", "\"beside\":9"}};
  record.id = MustAcquire("n");
  const LeaseRecord standby = MustStandBeside(record.id);
  ASSERT_EQ(standby.id.epoch, 2u);
  Lapse(record);
  EXPECT_TRUE(store_->Renew(record, kLongMs).value_or({}).recreated);
  world_->Forget();
  EXPECT_TRUE(store_->Renew(standby, kLongMs).value_or({}).recreated);
  Result<RenewResult> renewed = store_->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  EXPECT_TRUE(renewed->recreated);
  EXPECT_THAT(Changes(0).leases, UnorderedElementsAre(record, standby));
  // An epoch is nobody else's all the same.
  EXPECT_TRUE(store_->Release(record.id, 0).ok());
  EXPECT_EQ(MustStandBeside(standby.id).id.epoch, 3u);
  EXPECT_TRUE(store_->Release({"n", 3}, 0).ok());
  EXPECT_TRUE(store_->Release(standby.id, 0).ok());
  EXPECT_EQ(MustAcquire("n").epoch, 4u);
}

TEST_P(MetadataContract, AStandbyThatHasBecomeActiveHasSupersededItsPredecessor) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  LeaseRecord successor = MustStandBeside(record.id);
  world_->Forget();
  EXPECT_TRUE(store_->Renew(successor, kLongMs).ok());
  successor.state = NodeState::kActive;
  successor.beside = 0;
  EXPECT_TRUE(store_->Renew(successor, kLongMs).ok());
  Result<RenewResult> late = store_->Renew(record, kLongMs);
  ASSERT_EQ(late.code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(late.error().context, HasSubstr("superseded by n:2"));
  // Also when the service does not know of the time before.
  world_->Forget();
  EXPECT_TRUE(store_->Renew(successor, kLongMs).ok());
  EXPECT_EQ(store_->Renew(record, kLongMs).code(), ErrorCode::kStaleEpoch);
  // Its own standby is none of the one before it.
  const LeaseRecord third = MustStandBeside(successor.id);
  EXPECT_EQ(third.id.epoch, 3u);
  EXPECT_EQ(store_->Renew(record, kLongMs).code(), ErrorCode::kStaleEpoch);
  EXPECT_TRUE(store_->Release(successor.id, 0).ok());
  EXPECT_EQ(store_->Renew(record, kLongMs).code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(Changes(0).leases, ElementsAre(third));
}

TEST_P(MetadataContract, AStandbyOfAnOlderVersionSupersedes) {
  LeaseRecord record = Record("n");
  record.id = MustAcquire("n");
  LeaseRecord standby = MustStandBeside(record.id);
  standby.beside = 0;
  world_->Forget();
  EXPECT_TRUE(store_->Renew(standby, kLongMs).ok());
  EXPECT_EQ(store_->Renew(record, kLongMs).code(), ErrorCode::kStaleEpoch);
}

// A process that stood still while the service lost everything and somebody else got its name.
TEST_P(MetadataContract, RenewDoesNotTakeTheLeaseOfAnotherProcess) {
  LeaseRecord held = Record("n");
  held.instance = 1;
  Result<NodeId> id = store_->Acquire(held, kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  held.id = *id;
  LeaseRecord other = held;
  other.instance = 2;
  other.endpoint = "10.9.9.9:9";
  const uint64_t before = Revision();
  Result<RenewResult> refused = store_->Renew(other, kLongMs);
  ASSERT_EQ(refused.code(), ErrorCode::kStaleEpoch);
  EXPECT_THAT(refused.error().context, HasSubstr("n:1 is the name of another process"));
  EXPECT_EQ(Revision(), before);
  EXPECT_THAT(Changes(0).leases, ElementsAre(held));
  // The version before this one did not say which process it was.
  other.instance = 0;
  EXPECT_TRUE(store_->Renew(other, kLongMs).ok());
  held.labels = {{"instance", "2"}, {"x", "\"instance\":2"}};
  EXPECT_TRUE(store_->Renew(held, kLongMs).ok());
  held.labels.clear();
  EXPECT_TRUE(store_->Renew(held, kLongMs).ok());
}

TEST_P(MetadataContract, ReleaseIsIdempotentAndBumpsOnce) {
  const NodeId id = MustAcquire("n");
  const uint64_t before = Revision();
  EXPECT_TRUE(store_->Release(id, 0).ok());
  const uint64_t after = Revision();
  EXPECT_GT(after, before);
  EXPECT_TRUE(store_->Release(id, 0).ok());
  EXPECT_TRUE(store_->Release({"never", 9}, 0).ok());
  EXPECT_EQ(Revision(), after);
  EXPECT_THAT(Changes(before).gone, ElementsAre(id));
}

TEST_P(MetadataContract, ReleaseDoesNotEndTheLeaseOfAnotherProcess) {
  LeaseRecord held = Record("n");
  held.id = MustAcquire("n");
  const uint64_t before = Revision();
  EXPECT_TRUE(store_->Release(held.id, held.instance + 1).ok());
  EXPECT_EQ(Revision(), before);
  EXPECT_THAT(Changes(0).leases, ElementsAre(held));
  EXPECT_TRUE(store_->Release(held.id, held.instance).ok());
  EXPECT_THAT(Changes(before).gone, ElementsAre(held.id));
  // The versions before did not say which process it is.
  held.instance = 0;
  Result<NodeId> id = store_->Acquire(held, kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  EXPECT_TRUE(store_->Release(*id, 9).ok());
  EXPECT_THAT(Changes(0).leases, IsEmpty());
}

}  // namespace mooncake::testing

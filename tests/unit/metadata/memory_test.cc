#include "metadata/lease_rules.h"
#include "metadata/memory/memory_metadata.h"
#include "support/faulty_metadata.h"
#include "support/leases.h"
#include "support/manual_runtime.h"
#include "unit/metadata/contract.h"

namespace mooncake::testing {
namespace {

using metadata::MemoryMetadata;
using metadata::MemoryRegistry;

class MemoryWorld final : public MetadataWorld {
 public:
  std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) override {
    return *MemoryMetadata::Open("memory://m", keyspace, registry_, runtime_);
  }
  void Pass(uint64_t ms) override { runtime_.Advance(ms); }
  void Forget() override { registry_.Find("m", "ks")->Forget(); }

 private:
  ManualRuntime runtime_;
  MemoryRegistry registry_;
};

INSTANTIATE_TEST_SUITE_P(Memory, MetadataContract,
                         Worlds("memory", [] { return std::make_unique<MemoryWorld>(); }));

TEST(MemoryMetadata, NamesShareAStateAndOtherNamesDoNot) {
  ManualRuntime runtime;
  MemoryRegistry registry;
  auto a = *MemoryMetadata::Open("memory://a", "ks", registry, runtime);
  auto b = *MemoryMetadata::Open("memory://b", "ks", registry, runtime);
  EXPECT_TRUE(a->Acquire(Named("n"), 1000, std::nullopt, false).ok());
  EXPECT_GT((*MemoryMetadata::Open("memory://a", "ks", registry, runtime))->Poll().value_or(0), 0u);
  EXPECT_EQ(b->Poll().value_or(1), 0u);
  EXPECT_EQ(MemoryMetadata::Open("memory://", "ks", registry, runtime).code(),
            ErrorCode::kInvalidArgument);
}

TEST(MemoryMetadata, EpochsAreForgottenSevenDaysAfterTheLastLease) {
  ManualRuntime runtime(metadata::kEpochMarkMs);
  MemoryRegistry registry;
  auto store = *MemoryMetadata::Open("memory://a", "ks", registry, runtime);
  LeaseRecord record = Named("n");
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    record.id = store->Acquire(Named("n"), 1000, std::nullopt, false).value_or(NodeId{});
    EXPECT_EQ(record.id.epoch, epoch);
    ASSERT_TRUE(store->Release(record.id, 0).ok());
    runtime.Advance(metadata::kEpochMarkMs);
  }
  runtime.Advance(1);
  EXPECT_EQ(store->Acquire(Named("n"), 1000, std::nullopt, false).value_or(NodeId{}).epoch, 1u);
}

// Which is all that the versions before look at.
TEST(MemoryMetadata, AStandbyThatRepairsItsLeaseLeavesNoMarkUntilItIsActive) {
  ManualRuntime runtime;
  MemoryRegistry registry;
  auto store = *MemoryMetadata::Open("memory://a", "ks", registry, runtime);
  const auto mark = [&] {
    uint64_t epoch = 0;
    registry.Find("a", "ks")->Run([&](metadata::LeaseTable& t) { epoch = t.EpochMark("n"); });
    return epoch;
  };
  LeaseRecord record = Named("n");
  record.id.epoch = 2;
  record.beside = 1;
  ASSERT_TRUE(store->Renew(record, 1000).ok());
  EXPECT_EQ(mark(), 0u);
  record.state = NodeState::kActive;
  record.beside = 0;
  ASSERT_TRUE(store->Renew(record, 1000).ok());
  EXPECT_EQ(mark(), 2u);
}

class FaultyMetadataTest : public ::testing::Test {
 protected:
  ManualRuntime runtime_;
  MemoryRegistry registry_;
  std::unique_ptr<MetadataStore> inner_ =
      *MemoryMetadata::Open("memory://a", "ks", registry_, runtime_);
  FaultyMetadata store_{*inner_, runtime_};
};

TEST_F(FaultyMetadataTest, DownFailsAtOnceAndHungAfterTheTimeout) {
  const uint64_t start_ms = runtime_.NowMs();
  store_.SetFault(MetadataFault::kDown);
  EXPECT_EQ(store_.Poll().code(), ErrorCode::kMetadata);
  EXPECT_EQ(runtime_.NowMs(), start_ms);
  store_.SetFault(MetadataFault::kHung);
  EXPECT_EQ(store_.Poll().code(), ErrorCode::kMetadata);
  EXPECT_EQ(runtime_.NowMs(), start_ms + 3'000);
  store_.SetFault(MetadataFault::kSlow);
  EXPECT_TRUE(store_.Poll().ok());
  EXPECT_EQ(runtime_.NowMs(), start_ms + 3'500);
  EXPECT_EQ(store_.calls(), 3u);
}

TEST_F(FaultyMetadataTest, FailAfterApplyAppliesAndOnlyTheNextCallsFail) {
  store_.FailNext(1, MetadataFault::kFailAfterApply);
  EXPECT_EQ(store_.Acquire(Named("n"), 1000, std::nullopt, false).code(), ErrorCode::kMetadata);
  EXPECT_EQ(store_.Acquire(Named("n"), 1000, std::nullopt, false).code(), ErrorCode::kConflict);
}

}  // namespace
}  // namespace mooncake::testing

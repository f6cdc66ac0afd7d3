#include "client/local_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "metadata/memory/memory_metadata.h"
#include "mooncake/memory_hold.h"
#include "obs/prometheus_metrics.h"
#include "runtime/real_runtime.h"
#include "support/test_cluster.h"
#include "transfer/memory/memory_network.h"

namespace mooncake::client {
namespace {

using testing::TestCluster;

// A store that is a cluster of its own.
class LocalStoreTest : public ::testing::Test {
 protected:
  LocalStoreTest() {
    StoreParts parts;
    auto runtime = std::make_unique<runtime::RealRuntime>();
    parts.metrics = std::make_unique<obs::PrometheusMetrics>("default");
    parts.metadata = std::make_unique<metadata::MemoryMetadata>(
        std::make_shared<metadata::MemoryState>(), *runtime);
    parts.transport = std::make_unique<transfer::MemoryTransport>(network_);
    parts.node = *node::Node::Start(TestCluster::Config("a"),
                                    {*runtime, *parts.metadata, *parts.transport, *parts.metrics});
    parts.pool = *LocalPool::Open(1 << 16, 0);
    parts.runtime = std::move(runtime);
    StoreConfig config;
    config.request_timeout_ms = 1'000;
    store_ = std::make_unique<LocalStore>(config, std::move(parts));
  }

  runtime::RealRuntime network_runtime_;
  transfer::MemoryNetwork network_{network_runtime_};
  std::unique_ptr<Store> store_;
};

TEST_F(LocalStoreTest, BadKeysFailAloneInABatch) {
  const std::string longest(kKeySizeMax, 'k');
  const std::string too_long(kKeySizeMax + 1, 'k');
  const ConstBytes value = BytesOf("v");
  const std::vector<PutItem> puts = {
      {"good", {&value, 1}}, {"", {&value, 1}}, {too_long, {&value, 1}}, {longest, {&value, 1}}};
  const auto put = store_->PutMany(puts, {});
  const std::vector<std::string_view> keys = {"good", "", too_long, longest};
  const auto exist = store_->ExistMany(keys, {});
  for (size_t i = 0; i < keys.size(); ++i) {
    const bool good = i == 0 || i == 3;
    EXPECT_EQ(put[i].code(), good ? ErrorCode::kOk : ErrorCode::kInvalidArgument) << i;
    EXPECT_EQ(exist[i].code(), good ? ErrorCode::kOk : ErrorCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(store_->Get(longest).value_or(""), "v");
  const auto removed = store_->RemoveMany(keys, {});
  EXPECT_TRUE(removed[0].ok());
  EXPECT_EQ(removed[1].code(), ErrorCode::kInvalidArgument);
}

TEST_F(LocalStoreTest, EveryCallRefusesABadKeyWithItsSize) {
  std::byte memory[8];
  const std::string_view bad;
  EXPECT_EQ(store_->Put(bad, {}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->Get(bad).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->GetInto(bad, memory).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->GetSize(bad).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->QueryRoute(bad).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->Remove(bad).code(), ErrorCode::kInvalidArgument);
  const RangeItem range{bad, 0, memory};
  EXPECT_EQ(store_->GetRanges({&range, 1}, {})[0].code(), ErrorCode::kInvalidArgument);
}

TEST_F(LocalStoreTest, EmptyBatchesGiveEmptyAnswers) {
  EXPECT_TRUE(store_->PutMany({}, {}).empty());
  EXPECT_TRUE(store_->GetMany({}, {}).empty());
  EXPECT_TRUE(store_->ExistMany({}, {}).empty());
  EXPECT_TRUE(store_->RemoveMany({}, {}).empty());
  EXPECT_TRUE(store_->GetRanges({}, {}).empty());
}

TEST_F(LocalStoreTest, AnOverlongTenantIsAnArgumentError) {
  for (const std::string& tenant : {std::string(100'000, 't'), std::string("t\xff")}) {
    EXPECT_EQ(store_->Get("k", tenant).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(store_->Put("k", {}, {.tenant = tenant}).code(), ErrorCode::kInvalidArgument);
  }
}

TEST_F(LocalStoreTest, TenantsDoNotSeeEachOther) {
  ASSERT_TRUE(store_->Put("k", BytesOf("mine")).ok());
  ASSERT_TRUE(store_->Put("k", BytesOf("theirs"), {.tenant = "other"}).ok());
  EXPECT_EQ(store_->Get("k").value_or(""), "mine");
  EXPECT_EQ(store_->Get("k", "default").value_or(""), "mine");
  EXPECT_EQ(store_->Get("k", "other").value_or(""), "theirs");
  EXPECT_EQ(store_->RemoveAll("other").value_or(0), 1u);
  EXPECT_EQ(store_->Get("k").value_or(""), "mine");
}

TEST_F(LocalStoreTest, AValueThatDoesNotFitLeavesTheTargetAlone) {
  ASSERT_TRUE(store_->Put("k", BytesOf("12345")).ok());
  std::string memory = "....";
  EXPECT_EQ(store_->GetInto("k", MutableBytesAt(memory.data(), 4)).code(), ErrorCode::kTooSmall);
  EXPECT_EQ(memory, "....");
}

TEST_F(LocalStoreTest, RangesMustLieWithinTheValue) {
  ASSERT_TRUE(store_->Put("k", BytesOf("0123456789")).ok());
  std::string memory(4, '.');
  const auto read = [&](uint64_t offset) {
    const RangeItem item{"k", offset, MutableBytesAt(memory.data(), memory.size())};
    return store_->GetRanges({&item, 1}, {})[0];
  };
  EXPECT_EQ(read(3).value_or(0), 4u);
  EXPECT_EQ(memory, "3456");
  EXPECT_EQ(read(6).value_or(0), 4u);
  for (uint64_t offset : {uint64_t{7}, uint64_t{11}, ~uint64_t{0}, ~uint64_t{0} - 3}) {
    EXPECT_EQ(read(offset).code(), ErrorCode::kTooSmall) << offset;
  }
}

TEST_F(LocalStoreTest, RegistrationsAreCheckedAndNest) {
  std::byte memory[256];
  EXPECT_EQ(store_->RegisterBuffer(nullptr, 10).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store_->UnregisterBuffer(memory).code(), ErrorCode::kNotFound);
  ASSERT_TRUE(store_->RegisterBuffer(memory, sizeof memory).ok());
  ASSERT_TRUE(store_->RegisterBuffer(memory, sizeof memory).ok());
  EXPECT_TRUE(store_->IsRegistered(memory + 10, 20));
  ASSERT_TRUE(store_->UnregisterBuffer(memory).ok());
  EXPECT_TRUE(store_->IsRegistered(memory, 1));
  ASSERT_TRUE(store_->UnregisterBuffer(memory).ok());
  EXPECT_FALSE(store_->IsRegistered(memory, 1));
  // A closed store holds nothing: whoever asks has to be told so.
  ASSERT_TRUE(store_->RegisterBuffer(memory, sizeof memory).ok());
  store_->Close();
  EXPECT_FALSE(store_->IsRegistered(memory, 1));
  EXPECT_FALSE(store_->IsWritable(memory, 1));
}

TEST_F(LocalStoreTest, AHoldKeepsRegisteredMemoryUntilItEnds) {
  std::byte memory[256];
  ASSERT_TRUE(store_->RegisterBuffer(memory, sizeof memory).ok());
  std::atomic<bool> gone = false;
  std::thread other;
  {
    const MemoryHold hold(*store_);
    ASSERT_TRUE(store_->IsRegistered(memory, sizeof memory));
    other = std::thread([&] {
      EXPECT_TRUE(store_->UnregisterBuffer(memory).ok());
      gone = true;
    });
    // Later calls find nothing at once; those that have looked may go on.
    while (store_->IsRegistered(memory, 1)) std::this_thread::yield();
    for (int i = 0; i < 50; ++i) std::this_thread::yield();
    EXPECT_FALSE(gone);
    EXPECT_TRUE(store_->Put("k", ConstBytes(memory)).ok());
  }
  other.join();
  EXPECT_TRUE(gone);
}

TEST_F(LocalStoreTest, AHoldThatDoesNotEndFailsTheUnregister) {
  std::byte memory[256];
  ASSERT_TRUE(store_->RegisterBuffer(memory, sizeof memory).ok());
  {
    const MemoryHold hold(*store_);
    EXPECT_EQ(store_->UnregisterBuffer(memory).code(), ErrorCode::kTransport);
  }
  EXPECT_TRUE(store_->IsRegistered(memory, sizeof memory));
  EXPECT_TRUE(store_->UnregisterBuffer(memory).ok());
}

TEST_F(LocalStoreTest, PoolLeasesCountAsRegistered) {
  const auto lease = store_->LocalPoolTryAcquire(100);
  ASSERT_TRUE(lease);
  EXPECT_TRUE(store_->IsRegistered(lease->data(), 100));
  store_->Close();
  EXPECT_FALSE(store_->LocalPoolTryAcquire(100));
  store_->LocalPoolRelease(*lease);  // Late, and harmless.
}

TEST_F(LocalStoreTest, EveryCallAfterCloseSaysSo) {
  ASSERT_TRUE(store_->Put("k", BytesOf("v")).ok());
  store_->Close();
  store_->Close();
  EXPECT_TRUE(store_->closed());
  EXPECT_EQ(store_->Put("k", {}).code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->Get("k").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->Exists("k").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->Remove("k").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->GetSize("k").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->QueryRoute("k").code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->RemoveAll().code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->Heartbeat().code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store_->SetState("active").code(), ErrorCode::kInvalidState);
  std::byte memory[8];
  EXPECT_EQ(store_->RegisterBuffer(memory, 8).code(), ErrorCode::kInvalidState);
}

TEST_F(LocalStoreTest, UnknownStatesAreArgumentErrors) {
  EXPECT_EQ(store_->SetState("asleep").code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(store_->SetState("draining").ok());
  EXPECT_TRUE(store_->SetState("active").ok());
}

}  // namespace
}  // namespace mooncake::client

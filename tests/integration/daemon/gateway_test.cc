// A daemon without storage in front of storage nodes: values come from elsewhere, through the
// daemon's scratch memory or its hot cache, and clients copy them out of there.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "daemon_fixture.h"

namespace mooncake {
namespace {

class GatewayTest : public DaemonTest {
 protected:
  void Start(const std::string& cluster, bool with_cache, bool shared) {
    a_ = Node(cluster);
    b_ = Node(cluster);
    config_.store = NodeConfigFor(cluster, 0);
    if (with_cache) {
      config_.store.local_hot_cache_size = 16 * kMiB;
      config_.store.local_hot_block_size = 4 * kMiB;
      config_.store.local_hot_cache_use_shm = shared;
    }
    StartDaemon(cluster);
  }

  std::unique_ptr<Store> a_;
  std::unique_ptr<Store> b_;
};

TEST_F(GatewayTest, ValuesOfOtherNodesAreReadAndWritten) {
  Start("g-plain", false, false);
  auto store = Client();
  const MutableBytes pool = memory_.Alloc(16 * kMiB);
  ASSERT_TRUE(store->RegisterBuffer(pool.data(), pool.size()).ok());
  std::vector<std::string> keys;
  std::vector<ConstBytes> parts;
  std::vector<PutItem> puts;
  constexpr size_t kSize = 64 << 10;
  for (size_t i = 0; i < 128; ++i) {
    keys.push_back("page-" + std::to_string(i));
    const std::string value = ValueOf(keys[i], kSize);
    std::memcpy(pool.data() + i * kSize, value.data(), kSize);
    parts.push_back(pool.subspan(i * kSize, kSize));
  }
  for (size_t i = 0; i < 128; ++i) puts.push_back({keys[i], {&parts[i], 1}});
  PutOptions options;
  options.if_absent = true;
  for (const Status& status : store->PutMany(puts, options)) {
    ASSERT_TRUE(status.ok()) << status.error().ToString();
  }
  EXPECT_TRUE(a_->Get(keys[5]).value_or("") == ValueOf(keys[5], kSize));
  std::memset(pool.data(), 0, pool.size());
  std::vector<MutableBytes> targets;
  std::vector<GetItem> gets;
  for (size_t i = 0; i < 128; ++i) targets.push_back(pool.subspan(8 * kMiB + i * kSize, kSize));
  for (size_t i = 0; i < 128; ++i) gets.push_back({keys[i], {&targets[i], 1}});
  const auto sizes = store->GetMany(gets, {});
  for (size_t i = 0; i < 128; ++i) {
    ASSERT_TRUE(sizes[i].ok()) << sizes[i].error().ToString();
    ASSERT_TRUE(TextOf(targets[i]) == ValueOf(keys[i], kSize));
  }
  EXPECT_EQ(Count("dummy_leases", "default"), 0u);
  std::string piece(100, '?');
  const RangeItem range{keys[9], 1234, MutableBytesAt(piece.data(), 100)};
  EXPECT_EQ(store->GetRanges({&range, 1}, {})[0].value_or(0), 100u);
  EXPECT_EQ(piece, ValueOf(keys[9], kSize).substr(1234, 100));
  // Below the high watermark of one segment, or it would be evicted at once.
  const std::string large = ValueOf("large", 50 * kMiB);
  EXPECT_FALSE(store->Put("too large", BytesOf(std::string(65 * kMiB, 'x'))).ok());
  EXPECT_EQ(store->RemoveAll().value_or(0), 128u);
  ASSERT_TRUE(store->Put("large", BytesOf(large)).ok());
  const auto got = store->Get("large");
  ASSERT_TRUE(got.ok()) << got.error().ToString();
  EXPECT_TRUE(*got == large);
}

TEST_F(GatewayTest, ClientsOfOneScopeShareTheHotCacheInPlace) {
  Start("g-hot", true, true);
  DummyConfig config = ClientConfig();
  config.worker_scope = "one";
  auto first = Client(config);
  auto second = Client(config);
  config.worker_scope = "two";
  auto stranger = Client(config);
  const std::string value = ValueOf("k", kMiB);
  ASSERT_TRUE(a_->Put("k", BytesOf(value)).ok());
  EXPECT_TRUE(first->Get("k").value_or("") == value);
  EXPECT_EQ(Count("hot_cache_total", "miss"), 1u);
  EXPECT_EQ(Count("hot_cache_total", "hit"), 0u);
  EXPECT_TRUE(second->Get("k").value_or("") == value);
  EXPECT_EQ(Count("hot_cache_total", "hit"), 1u);
  EXPECT_TRUE(stranger->Get("k").value_or("") == value);
  EXPECT_EQ(Count("hot_cache_total", "miss"), 2u);
  std::string target(kMiB, '?');
  EXPECT_EQ(second->GetInto("k", MutableBytesAt(target.data(), kMiB)).value_or(0), kMiB);
  EXPECT_TRUE(target == value);
  EXPECT_EQ(Count("hot_cache_total", "hit"), 2u);
  // The truth moves on.
  const std::string newer = ValueOf("k", kMiB, 1);
  ASSERT_TRUE(b_->Put("k", BytesOf(newer)).ok());
  EXPECT_TRUE(first->Get("k").value_or("") == newer);
  EXPECT_EQ(Count("hot_cache_total", "stale"), 1u);
  ASSERT_TRUE(second->Remove("k").ok());
  EXPECT_EQ(first->Get("k").code(), ErrorCode::kNotFound);
  const std::string bypass = ValueOf("large", 5 * kMiB);
  ASSERT_TRUE(a_->Put("large", BytesOf(bypass)).ok());
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(first->Get("large").value_or("") == bypass);
  EXPECT_EQ(Count("hot_cache_total", "hit"), 2u);
}

TEST_F(GatewayTest, ACacheThatIsNotSharedStillSavesTheTransfer) {
  Start("g-private", true, false);
  auto store = Client();
  const std::string value = ValueOf("k", kMiB);
  ASSERT_TRUE(a_->Put("k", BytesOf(value)).ok());
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(store->Get("k").value_or("") == value);
  EXPECT_EQ(Count("hot_cache_total", "hit"), 2u);
}

TEST_F(GatewayTest, ManyClientsReadAndWriteUnderEviction) {
  Start("g-evict", true, true);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  std::atomic<int> hits{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      auto store = Client();
      const MutableBytes pool = memory_.Alloc(2 * kMiB);
      if (!store->RegisterBuffer(pool.data(), pool.size()).ok()) ++wrong;
      for (int i = 0; i < 100; ++i) {
        // All write the same keys with the same bytes, 200 MiB of them: they are evicted.
        const std::string key = "k" + std::to_string((i * 7 + t * 13) % 200);
        const std::string value = ValueOf(key, kMiB);
        std::memcpy(pool.data(), value.data(), kMiB);
        if (!store->Put(key, pool.first(kMiB)).ok()) ++wrong;
        const auto got = store->GetInto(key, pool.subspan(kMiB));
        if (!got.ok()) continue;
        ++hits;
        if (TextOf(pool.subspan(kMiB)) != value) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_GT(hits.load(), 100);
  EXPECT_EQ(Count("dummy_leases", "default"), 0u);
}

}  // namespace
}  // namespace mooncake

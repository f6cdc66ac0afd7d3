// The local hot cache of a store in a cluster over TCP: what it saves, and that it never outlives
// the truth that it copied.
#include <gtest/gtest.h>

#include <string>

#include "mooncake/store.h"

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

StoreConfig ConfigFor(const std::string& cluster, uint64_t segment_bytes) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://" + cluster;
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  config.request_timeout_ms = 10'000;
  config.transfer_stall_timeout_ms = 2'000;
  return config;
}

StoreConfig ReaderConfig(const std::string& cluster) {
  StoreConfig config = ConfigFor(cluster, 0);
  config.local_hot_cache_size = 8 * kMiB;
  config.local_hot_block_size = kMiB;
  return config;
}

std::unique_ptr<Store> Open(const StoreConfig& config) {
  auto store = Store::Open(config);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return store.ok() ? *std::move(store) : nullptr;
}

// The number behind `series` in the metrics of a store.
double Metric(Store& store, const std::string& series) {
  const std::string text = store.MetricsText();
  const size_t at = text.find("\n" + series);
  if (at == std::string::npos) return -1;
  const size_t end = text.find('\n', at + 1);
  return std::stod(text.substr(text.rfind(' ', end), end));
}

uint64_t Count(Store& store, const std::string& result) {
  const std::string text = store.MetricsText();
  size_t at = 0;
  while ((at = text.find("mooncake_store_hot_cache_total{", at)) != std::string::npos) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (line.find("result=\"" + result + "\"") != std::string::npos) {
      return std::stoull(line.substr(line.rfind(' ')));
    }
    at = end;
  }
  return 0;
}

class HotReads : public testing::Test {
 protected:
  void Start(const std::string& cluster) {
    cluster_ = cluster;
    a_ = Open(ConfigFor(cluster, 64 * kMiB));
    b_ = Open(ConfigFor(cluster, 64 * kMiB));
  }

  std::string cluster_;
  std::unique_ptr<Store> a_;
  std::unique_ptr<Store> b_;
};

TEST_F(HotReads, TheSecondReadOfARemoteValueIsAHit) {
  Start("hot-second");
  auto reader = Open(ReaderConfig(cluster_));
  for (int i = 0; i < 20; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_TRUE(a_->Put(key, BytesOf(std::string(1000 + i, 'x'))).ok());
  }
  for (int pass = 0; pass < 2; ++pass) {
    for (int i = 0; i < 20; ++i) {
      const auto value = reader->Get("k" + std::to_string(i));
      ASSERT_TRUE(value.ok());
      EXPECT_EQ(*value, std::string(1000 + i, 'x'));
    }
  }
  EXPECT_EQ(Count(*reader, "miss"), 20u);
  EXPECT_EQ(Count(*reader, "hit"), 20u);
  EXPECT_EQ(Metric(*reader, "mooncake_store_hot_cache_entries"), 20);
}

TEST_F(HotReads, ACopyIsNeverServedAfterARemoteOverwriteOrRemove) {
  Start("hot-stale");
  auto reader = Open(ReaderConfig(cluster_));
  ASSERT_TRUE(a_->Put("k", BytesOf("one")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "one");
  EXPECT_EQ(reader->Get("k").value_or(""), "one");
  ASSERT_TRUE(b_->Put("k", BytesOf("other")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "other");
  EXPECT_EQ(Count(*reader, "stale"), 1u);
  EXPECT_EQ(reader->Get("k").value_or(""), "other");
  ASSERT_TRUE(b_->Remove("k").ok());
  EXPECT_EQ(reader->Get("k").code(), ErrorCode::kNotFound);
  EXPECT_EQ(Count(*reader, "stale"), 2u);
}

TEST_F(HotReads, OwnWritesAndRemovesForgetTheCopy) {
  Start("hot-own");
  StoreConfig config = ReaderConfig(cluster_);
  config.local_hot_cache_validate = false;
  config.local_hot_cache_max_age_ms = 3'600'000;
  auto reader = Open(config);
  ASSERT_TRUE(a_->Put("k", BytesOf("one")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "one");
  // Trusted without a question, for as long as configured.
  ASSERT_TRUE(b_->Put("k", BytesOf("two")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "one");
  ASSERT_TRUE(reader->Put("k", BytesOf("three")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "three");
  ASSERT_TRUE(reader->Remove("k").ok());
  EXPECT_EQ(reader->Get("k").code(), ErrorCode::kNotFound);
  ASSERT_TRUE(a_->Put("k", BytesOf("four")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "four");
  EXPECT_EQ(reader->RemoveAll().value_or(0), 1u);
  EXPECT_EQ(reader->Get("k").code(), ErrorCode::kNotFound);
}

TEST_F(HotReads, ScopesDoNotShareCopies) {
  Start("hot-scope");
  auto reader = Open(ReaderConfig(cluster_));
  ASSERT_TRUE(a_->Put("k", BytesOf("mine")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "mine");
  EXPECT_EQ(reader->Get("k", "stranger").code(), ErrorCode::kNotFound);
}

TEST_F(HotReads, LargerThanABlockBypassesAndRangesAreServedFromACopy) {
  Start("hot-block");
  auto reader = Open(ReaderConfig(cluster_));
  const std::string large(kMiB + 1, 'l');
  std::string exact(kMiB, 'e');
  exact[1000] = 'f';
  ASSERT_TRUE(a_->Put("large", BytesOf(large)).ok());
  ASSERT_TRUE(a_->Put("exact", BytesOf(exact)).ok());
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_TRUE(reader->Get("large").value_or("") == large);
    EXPECT_TRUE(reader->Get("exact").value_or("") == exact);
  }
  EXPECT_EQ(Count(*reader, "hit"), 1u);
  EXPECT_EQ(Metric(*reader, "mooncake_store_hot_cache_entries"), 1);
  std::string part(3, '?');
  const RangeItem range{"exact", 999, MutableBytesAt(part.data(), part.size())};
  EXPECT_EQ(reader->GetRanges({&range, 1}, {})[0].value_or(0), 3u);
  EXPECT_EQ(part, "efe");
  EXPECT_EQ(Count(*reader, "hit"), 2u);
  const RangeItem outside{"exact", kMiB - 1, MutableBytesAt(part.data(), 2)};
  EXPECT_EQ(reader->GetRanges({&outside, 1}, {})[0].code(), ErrorCode::kTooSmall);
}

TEST_F(HotReads, ATooSmallTargetIsRefusedAlsoOnAHit) {
  Start("hot-small");
  auto reader = Open(ReaderConfig(cluster_));
  ASSERT_TRUE(a_->Put("k", BytesOf("0123456789")).ok());
  EXPECT_EQ(reader->Get("k").value_or(""), "0123456789");
  std::string small(9, '?');
  const auto got = reader->GetInto("k", MutableBytesAt(small.data(), small.size()));
  EXPECT_EQ(got.code(), ErrorCode::kTooSmall);
}

TEST_F(HotReads, AStorageNodeDoesNotCopyWhatItHasItself) {
  const StoreConfig base = ConfigFor("hot-self", 64 * kMiB);
  StoreConfig config = base;
  config.local_hot_cache_size = 8 * kMiB;
  config.local_hot_block_size = kMiB;
  auto self = Open(config);
  ASSERT_TRUE(self->Put("k", BytesOf("v")).ok());
  EXPECT_EQ(self->Get("k").value_or(""), "v");
  EXPECT_EQ(self->Get("k").value_or(""), "v");
  EXPECT_EQ(Count(*self, "miss") + Count(*self, "hit"), 0u);
}

}  // namespace
}  // namespace mooncake

#include "hotcache/hot_cache.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/hash.h"

namespace mooncake::hotcache {
namespace {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

class HotCacheTest : public testing::Test {
 protected:
  CacheKey Key(std::string_view key, uint32_t scope = 0, uint32_t domain = 0) {
    return {domain, scope, base::Hash64(key), key};
  }
  void Make(uint64_t size, uint64_t block_bytes) {
    memory_.resize(size);
    cache_.emplace(memory_, block_bytes);
  }
  bool Fill(const CacheKey& key, uint64_t size, uint64_t version = 1, uint64_t now_ms = 0) {
    auto pin = cache_->Reserve(size);
    if (!pin) return false;
    EXPECT_EQ(pin.bytes().size(), size);
    std::memset(pin.bytes().data(), static_cast<int>(version), size);
    cache_->Publish(key, pin, version, version * 7, now_ms);
    return true;
  }
  bool Has(const CacheKey& key) { return static_cast<bool>(cache_->Find(key)); }

  std::vector<std::byte> memory_;
  std::optional<HotCache> cache_;
};

TEST_F(HotCacheTest, FindsWhatWasPublished) {
  Make(4 * kMiB, kMiB);
  EXPECT_FALSE(Has(Key("a")));
  ASSERT_TRUE(Fill(Key("a"), 1000, 3, 50));
  auto pin = cache_->Find(Key("a"));
  ASSERT_TRUE(pin);
  EXPECT_EQ(pin.version(), 3u);
  EXPECT_EQ(pin.checksum(), 21u);
  EXPECT_EQ(pin.filled_ms(), 50u);
  EXPECT_EQ(pin.bytes().size(), 1000u);
  EXPECT_EQ(pin.bytes()[999], std::byte{3});
  cache_->Confirm(pin, 80);
  EXPECT_EQ(pin.filled_ms(), 80u);
}

TEST_F(HotCacheTest, AReservedSlotIsFoundByNobodyUntilPublished) {
  Make(kMiB, kMiB);
  auto pin = cache_->Reserve(10);
  ASSERT_TRUE(pin);
  EXPECT_FALSE(Has(Key("a")));
  EXPECT_EQ(cache_->stats().entries, 0u);
}

TEST_F(HotCacheTest, EmptyAndTooLargeValuesBypass) {
  Make(2 * kMiB, kMiB);
  EXPECT_FALSE(cache_->Reserve(0));
  EXPECT_FALSE(cache_->Reserve(kMiB + 1));
  EXPECT_TRUE(cache_->Reserve(kMiB));
}

TEST_F(HotCacheTest, DomainsAndScopesAreSeparate) {
  Make(4 * kMiB, kMiB);
  ASSERT_TRUE(Fill(Key("a", 1, 1), 100));
  EXPECT_TRUE(Has(Key("a", 1, 1)));
  EXPECT_FALSE(Has(Key("a", 2, 1)));
  EXPECT_FALSE(Has(Key("a", 1, 2)));
}

TEST_F(HotCacheTest, EraseForgetsTheKeyInEveryDomain) {
  Make(4 * kMiB, kMiB);
  ASSERT_TRUE(Fill(Key("a", 1, 1), 100));
  ASSERT_TRUE(Fill(Key("a", 1, 2), 100));
  ASSERT_TRUE(Fill(Key("b", 1, 1), 100));
  ASSERT_TRUE(Fill(Key("a", 2, 1), 100));
  cache_->Erase(1, base::Hash64("a"), "a");
  EXPECT_FALSE(Has(Key("a", 1, 1)));
  EXPECT_FALSE(Has(Key("a", 1, 2)));
  EXPECT_TRUE(Has(Key("b", 1, 1)));
  EXPECT_TRUE(Has(Key("a", 2, 1)));
  cache_->EraseScope(1);
  EXPECT_FALSE(Has(Key("b", 1, 1)));
  EXPECT_TRUE(Has(Key("a", 2, 1)));
}

TEST_F(HotCacheTest, ANewerVersionReplacesAnOlderOneAndNotTheReverse) {
  Make(4 * kMiB, kMiB);
  ASSERT_TRUE(Fill(Key("a"), 100, 2));
  ASSERT_TRUE(Fill(Key("a"), 200, 3));
  EXPECT_EQ(cache_->Find(Key("a")).version(), 3u);
  ASSERT_TRUE(Fill(Key("a"), 100, 2));
  EXPECT_EQ(cache_->Find(Key("a")).version(), 3u);
  EXPECT_EQ(cache_->stats().entries, 1u);
  EXPECT_EQ(cache_->stats().bytes, 200u);
}

TEST_F(HotCacheTest, SmallValuesDoNotWasteABlock) {
  Make(4 * kMiB, kMiB);
  for (int i = 0; i < 4000; ++i) ASSERT_TRUE(Fill(Key("k" + std::to_string(i)), kKiB));
  EXPECT_EQ(cache_->stats().entries, 4000u);
  EXPECT_EQ(cache_->stats().evictions, 0u);
}

TEST_F(HotCacheTest, TheLeastRecentlyUsedGoesFirst) {
  Make(4 * kMiB, kMiB);
  for (const char* key : {"a", "b", "c", "d"}) ASSERT_TRUE(Fill(Key(key), kMiB));
  EXPECT_TRUE(Has(Key("a")));
  ASSERT_TRUE(Fill(Key("e"), kMiB));
  EXPECT_TRUE(Has(Key("a")));
  EXPECT_FALSE(Has(Key("b")));
  EXPECT_EQ(cache_->stats().evictions, 1u);
}

TEST_F(HotCacheTest, PinnedSlotsKeepTheirBytes) {
  Make(2 * kMiB, kMiB);
  ASSERT_TRUE(Fill(Key("a"), kMiB, 1));
  auto pin = cache_->Find(Key("a"));
  ASSERT_TRUE(Fill(Key("b"), kMiB, 2));
  ASSERT_TRUE(Fill(Key("c"), kMiB, 3));
  EXPECT_TRUE(Has(Key("a")));
  EXPECT_FALSE(Has(Key("b")));
  auto other = cache_->Find(Key("c"));
  EXPECT_FALSE(cache_->Reserve(kMiB));
  // Erased under the pin: not found any more, still readable, free again after the pin.
  cache_->Erase(0, base::Hash64("a"), "a");
  EXPECT_FALSE(Has(Key("a")));
  EXPECT_FALSE(cache_->Reserve(kMiB));
  EXPECT_EQ(pin.bytes()[0], std::byte{1});
  pin = {};
  EXPECT_TRUE(cache_->Reserve(kMiB));
}

TEST_F(HotCacheTest, EveryUseOfASlotHasItsOwnGeneration) {
  Make(kMiB, kMiB);
  auto first = cache_->Reserve(kMiB);
  const uint64_t generation = first.generation();
  first = {};
  EXPECT_NE(cache_->Reserve(kMiB).generation(), generation);
}

// A block that was cut for small values serves large ones again.
TEST_F(HotCacheTest, AnIdleBlockChangesItsSize) {
  constexpr uint64_t kBlock = 4 * kMiB;
  Make(2 * kBlock, kBlock);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Fill(Key("k" + std::to_string(i)), kKiB));
  ASSERT_TRUE(Fill(Key("almost"), kBlock - 1));
  EXPECT_TRUE(Has(Key("almost")));
  ASSERT_TRUE(Fill(Key("whole"), kBlock));
  EXPECT_TRUE(Has(Key("whole")));
  EXPECT_TRUE(Has(Key("almost")));
  EXPECT_FALSE(Has(Key("k1")));
  EXPECT_FALSE(Fill(Key("more"), kBlock + 1));
  ASSERT_TRUE(Fill(Key("small"), kKiB));
  EXPECT_TRUE(Has(Key("small")));
}

TEST_F(HotCacheTest, RandomUseNeverMixesBytesUp) {
  Make(8 * 64 * kKiB, 64 * kKiB);
  uint64_t state = 42;
  const auto draw = [&] { return state = base::Mix64(state + 0x9e3779b97f4a7c15ULL); };
  std::vector<HotCache::Pin> held;
  std::vector<std::byte> marks;
  for (int step = 0; step < 20'000; ++step) {
    const std::string key = std::to_string(draw() % 200);
    if (auto pin = cache_->Find(Key(key))) {
      const std::byte mark = pin.bytes()[0];
      ASSERT_EQ(mark, static_cast<std::byte>(pin.version()));
      ASSERT_EQ(pin.bytes().back(), mark);
      if (draw() % 8 == 0) {
        held.push_back(std::move(pin));
        marks.push_back(mark);
      }
    } else {
      Fill(Key(key), 1 + draw() % (64 * kKiB), 1 + draw() % 200);
    }
    if (draw() % 50 == 0) cache_->Erase(0, base::Hash64(key), key);
    if (held.size() > 4) {
      ASSERT_EQ(held[0].bytes()[0], marks[0]);
      ASSERT_EQ(held[0].bytes().back(), marks[0]);
      held.erase(held.begin());
      marks.erase(marks.begin());
    }
  }
  held.clear();
  EXPECT_EQ(cache_->stats().pinned_slots, 0u);
}

}  // namespace
}  // namespace mooncake::hotcache

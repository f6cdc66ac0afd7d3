#include "allocator/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace mooncake::allocator {
namespace {

constexpr uint64_t kMiB = 1 << 20;

TEST(ExtentAllocator, RoundsSizesUpToTheAlignment) {
  struct Case {
    uint64_t size;
    uint64_t rounded;
  };
  const Case cases[] = {{0, 64},
                        {1, 64},
                        {63, 64},
                        {64, 64},
                        {65, 128},
                        {4096, 4096},
                        {std::numeric_limits<uint64_t>::max(), ~uint64_t{63}}};
  for (const Case& c : cases) {
    EXPECT_EQ(ExtentAllocator::RoundUp(c.size), c.rounded) << c.size;
  }
}

TEST(ExtentAllocator, RoundsTheCapacityDown) {
  struct Case {
    uint64_t capacity;
    uint64_t usable;
  };
  for (const Case& c : {Case{0, 0}, Case{63, 0}, Case{64, 64}, Case{130, 128}}) {
    ExtentAllocator allocator(c.capacity);
    EXPECT_EQ(allocator.capacity_bytes(), c.usable);
    EXPECT_EQ(allocator.largest_free(), c.usable);
    EXPECT_EQ(allocator.Allocate(c.usable).has_value(), c.usable > 0);
  }
}

TEST(ExtentAllocator, ServesExactlyTheWholeCapacity) {
  // Powers of two and sizes in the middle of a size class.
  for (uint64_t capacity : {kMiB, kMiB + 64, 3 * kMiB - 64, uint64_t{1} << 50, 64 * 129ul}) {
    ExtentAllocator allocator(capacity);
    EXPECT_FALSE(allocator.Allocate(capacity + 1));
    EXPECT_EQ(allocator.Allocate(capacity), 0u);
    EXPECT_EQ(allocator.used_bytes(), capacity);
    EXPECT_EQ(allocator.largest_free(), 0u);
    EXPECT_FALSE(allocator.Allocate(0));
    EXPECT_TRUE(allocator.Free(0));
    EXPECT_EQ(allocator.largest_free(), capacity);
  }
}

TEST(ExtentAllocator, RefusesSizesThatCannotBe) {
  ExtentAllocator allocator(kMiB);
  EXPECT_FALSE(allocator.Allocate(std::numeric_limits<uint64_t>::max()));
  EXPECT_FALSE(allocator.Allocate(std::numeric_limits<uint64_t>::max() - 63));
  EXPECT_EQ(allocator.used_bytes(), 0u);
}

TEST(ExtentAllocator, FreeNeedsTheStartOfAnAllocatedRange) {
  ExtentAllocator allocator(kMiB);
  uint64_t offset = *allocator.Allocate(4096);
  EXPECT_FALSE(allocator.Free(offset + 64));
  EXPECT_FALSE(allocator.Free(offset + 1));
  EXPECT_FALSE(allocator.Free(offset + 4096));
  EXPECT_FALSE(allocator.Free(std::numeric_limits<uint64_t>::max()));
  EXPECT_EQ(allocator.used_bytes(), 4096u);
  EXPECT_TRUE(allocator.Free(offset));
  EXPECT_FALSE(allocator.Free(offset));
  EXPECT_EQ(allocator.used_bytes(), 0u);
  EXPECT_EQ(allocator.allocated_count(), 0u);
}

TEST(ExtentAllocator, FreeMergesWithBothNeighboursInAnyOrder) {
  std::vector<int> order = {0, 1, 2};
  do {
    ExtentAllocator allocator(4 * 1024);
    uint64_t offsets[4];
    for (uint64_t& offset : offsets) offset = *allocator.Allocate(1024);
    for (int i : order) EXPECT_TRUE(allocator.Free(offsets[i]));
    EXPECT_EQ(allocator.largest_free(), 3 * 1024u);
    EXPECT_EQ(allocator.Allocate(3 * 1024), 0u);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(ExtentAllocator, DoesNotMergeAcrossAnAllocatedRange) {
  ExtentAllocator allocator(3 * 1024);
  uint64_t offsets[3];
  for (uint64_t& offset : offsets) offset = *allocator.Allocate(1024);
  allocator.Free(offsets[0]);
  allocator.Free(offsets[2]);
  EXPECT_EQ(allocator.largest_free(), 1024u);
  EXPECT_FALSE(allocator.Allocate(1025));
  EXPECT_TRUE(allocator.Allocate(1024));
  EXPECT_TRUE(allocator.Allocate(1024));
}

TEST(ExtentAllocator, EqualObjectsFillEveryHoleAgain) {
  // 1,000 units lie in the middle of a size class, where searching higher classes only fails.
  const uint64_t size = 1000 * kAlignment;
  ExtentAllocator allocator(100 * size);
  std::vector<uint64_t> offsets;
  while (auto offset = allocator.Allocate(size)) offsets.push_back(*offset);
  ASSERT_EQ(offsets.size(), 100u);
  for (size_t i = 0; i < offsets.size(); i += 2) EXPECT_TRUE(allocator.Free(offsets[i]));
  for (size_t i = 0; i < offsets.size(); i += 2) EXPECT_TRUE(allocator.Allocate(size)) << i;
  EXPECT_EQ(allocator.used_bytes(), allocator.capacity_bytes());
}

TEST(ExtentAllocator, PrefersTheSmallestClassThatFits) {
  ExtentAllocator allocator(kMiB);
  uint64_t small = *allocator.Allocate(1024);
  allocator.Allocate(64);
  uint64_t large = *allocator.Allocate(64 * 1024);
  allocator.Allocate(64);
  allocator.Free(small);
  allocator.Free(large);
  EXPECT_EQ(allocator.Allocate(1000), small);
  EXPECT_EQ(allocator.Allocate(60 * 1024), large);
}

TEST(ExtentAllocator, ThreadsGetDisjointRanges) {
  ExtentAllocator allocator(kMiB);
  std::vector<std::vector<uint64_t>> kept(4);
  std::vector<std::thread> threads;
  for (auto& mine : kept) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        if (auto offset = allocator.Allocate(128)) mine.push_back(*offset);
        if (mine.size() > 500) {
          EXPECT_TRUE(allocator.Free(mine.back()));
          mine.pop_back();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  for (const auto& mine : kept) {
    for (uint64_t offset : mine) EXPECT_TRUE(all.insert(offset).second);
  }
  EXPECT_EQ(allocator.used_bytes(), all.size() * 128);
  EXPECT_EQ(allocator.allocated_count(), all.size());
}

// Knows the allocated ranges and derives everything else from them.
class Model {
 public:
  explicit Model(uint64_t capacity) : capacity_(capacity) {}

  bool Fits(uint64_t offset, uint64_t size) const {
    if (offset % kAlignment != 0 || offset + size > capacity_) return false;
    auto next = ranges_.lower_bound(offset);
    if (next != ranges_.end() && offset + size > next->first) return false;
    if (next == ranges_.begin()) return true;
    auto previous = std::prev(next);
    return previous->first + previous->second <= offset;
  }
  void Add(uint64_t offset, uint64_t size) {
    ranges_[offset] = size;
    used_ += size;
  }
  void Remove(uint64_t offset) {
    used_ -= ranges_.at(offset);
    ranges_.erase(offset);
  }
  uint64_t LargestGap() const {
    uint64_t end = 0;
    uint64_t largest = 0;
    for (const auto& [offset, size] : ranges_) {
      largest = std::max(largest, offset - end);
      end = offset + size;
    }
    return std::max(largest, capacity_ - end);
  }
  uint64_t used() const { return used_; }
  size_t count() const { return ranges_.size(); }

 private:
  uint64_t capacity_;
  uint64_t used_ = 0;
  std::map<uint64_t, uint64_t> ranges_;
};

struct Workload {
  const char* name;
  uint64_t capacity;
  uint64_t size_max;
  int free_percent;  // Of the steps; more than half keeps the store nearly empty.
  int steps;
};

uint64_t DrawSize(std::mt19937_64& random, uint64_t size_max) {
  // Uniform in the logarithm, so that all magnitudes mix.
  auto bits = random() % static_cast<uint64_t>(std::bit_width(size_max));
  return random() % (uint64_t{1} << bits) + (uint64_t{1} << bits);
}

// What holds after any step, by looking at all ranges.
void ExpectHonest(ExtentAllocator& allocator, const Model& model) {
  uint64_t gap = model.LargestGap();
  uint64_t promised = allocator.largest_free();
  EXPECT_LE(promised, gap);
  EXPECT_GE(promised, gap - gap / 64);
  EXPECT_EQ(allocator.allocated_count(), model.count());
  if (promised == 0) return;
  std::optional<uint64_t> offset = allocator.Allocate(promised);
  ASSERT_TRUE(offset);
  EXPECT_TRUE(model.Fits(*offset, promised));
  EXPECT_TRUE(allocator.Free(*offset));
}

class RandomWorkload : public testing::TestWithParam<Workload> {};

TEST_P(RandomWorkload, AgreesWithANaiveModel) {
  const Workload& workload = GetParam();
  ExtentAllocator allocator(workload.capacity);
  Model model(allocator.capacity_bytes());
  std::mt19937_64 random(20'240'607);
  std::vector<uint64_t> offsets;
  for (int step = 0; step < workload.steps; ++step) {
    bool frees = random() % 100 < static_cast<uint64_t>(workload.free_percent);
    if (frees && !offsets.empty()) {
      std::swap(offsets[random() % offsets.size()], offsets.back());
      ASSERT_TRUE(allocator.Free(offsets.back()));
      model.Remove(offsets.back());
      offsets.pop_back();
    } else {
      uint64_t size = DrawSize(random, workload.size_max);
      uint64_t rounded = ExtentAllocator::RoundUp(size);
      if (std::optional<uint64_t> offset = allocator.Allocate(size)) {
        ASSERT_TRUE(model.Fits(*offset, rounded)) << "step " << step;
        model.Add(*offset, rounded);
        offsets.push_back(*offset);
      } else if (step % 64 == 0) {
        ASSERT_LT(model.LargestGap(), rounded + rounded / 64 + kAlignment) << "step " << step;
      }
    }
    ASSERT_EQ(allocator.used_bytes(), model.used()) << "step " << step;
    if (step % 5000 == 0) ExpectHonest(allocator, model);
  }
  for (uint64_t offset : offsets) ASSERT_TRUE(allocator.Free(offset));
  EXPECT_EQ(allocator.used_bytes(), 0u);
  EXPECT_EQ(allocator.largest_free(), allocator.capacity_bytes());
  EXPECT_EQ(allocator.Allocate(allocator.capacity_bytes()), 0u);
}

INSTANTIATE_TEST_SUITE_P(ExtentAllocator, RandomWorkload,
                         testing::Values(Workload{"full", 64 * kMiB, 256 * 1024, 45, 400'000},
                                         Workload{"half", 64 * kMiB, 64 * 1024, 50, 300'000},
                                         Workload{"tiny", 256 * 1024, 512, 48, 200'000},
                                         Workload{"huge", uint64_t{1} << 46, uint64_t{1} << 40, 45,
                                                  100'000}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mooncake::allocator

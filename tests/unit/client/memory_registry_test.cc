#include "client/memory_registry.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>
#include <thread>

#include "runtime/real_runtime.h"

namespace mooncake::client {
namespace {

// Addresses inside memory that is there.
std::byte memory[4096];
const void* At(size_t offset) { return memory + offset; }

TEST(RangeTable, ContainsWhatLiesWithinOneRange) {
  RangeTable table;
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  EXPECT_TRUE(table.Contains(At(1000), 100));
  EXPECT_TRUE(table.Contains(At(1050), 50));
  EXPECT_TRUE(table.Contains(At(1099), 1));
  EXPECT_FALSE(table.Contains(At(999), 2));
  EXPECT_FALSE(table.Contains(At(1000), 101));
  EXPECT_FALSE(table.Contains(At(1100), 1));
}

TEST(RangeTable, TwoNeighboursAreNotOneRange) {
  RangeTable table;
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  ASSERT_TRUE(table.Add(At(1100), 100).ok());
  EXPECT_FALSE(table.Contains(At(1050), 100));
}

TEST(RangeTable, RefusesNullEmptyAndWrappingRanges) {
  RangeTable table;
  EXPECT_EQ(table.Add(nullptr, 10).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(table.Add(At(1000), 0).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(table.Add(At(1000), SIZE_MAX).code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(table.Contains(At(1000), SIZE_MAX));
  EXPECT_EQ(table.size(), 0u);
}

TEST(RangeTable, RegistrationsOfOneRangeNest) {
  RangeTable table;
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  ASSERT_TRUE(table.Remove(At(1000)).ok());
  EXPECT_TRUE(table.Contains(At(1000), 100));
  ASSERT_TRUE(table.Remove(At(1000)).ok());
  EXPECT_FALSE(table.Contains(At(1000), 1));
  EXPECT_EQ(table.Remove(At(1000)).code(), ErrorCode::kNotFound);
}

TEST(RangeTable, TheLastRegistrationOfABaseGoesFirst) {
  RangeTable table;
  ASSERT_TRUE(table.Add(At(1000), 500).ok());
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  EXPECT_TRUE(table.Contains(At(1000), 500));
  ASSERT_TRUE(table.Remove(At(1000)).ok());
  EXPECT_TRUE(table.Contains(At(1000), 500));
  ASSERT_TRUE(table.Remove(At(1000)).ok());
  EXPECT_FALSE(table.Contains(At(1000), 1));
}

TEST(RangeTable, AgreesWithAListOverRandomOverlappingRanges) {
  std::mt19937_64 random(5);
  RangeTable table;
  std::vector<std::pair<size_t, size_t>> list;
  for (int step = 0; step < 5000; ++step) {
    const size_t base = 1 + random() % 400;
    if (random() % 2 == 0) {
      const size_t size = 1 + random() % 60;
      ASSERT_TRUE(table.Add(At(base), size).ok());
      list.emplace_back(base, size);
    } else {
      const auto last = std::find_if(list.rbegin(), list.rend(),
                                     [&](const auto& range) { return range.first == base; });
      EXPECT_EQ(table.Remove(At(base)).ok(), last != list.rend());
      if (last != list.rend()) list.erase(std::next(last).base());
    }
    const size_t asked = 1 + random() % 400;
    const size_t size = random() % 50;
    const bool inside = std::any_of(list.begin(), list.end(), [&](const auto& range) {
      return range.first <= asked && asked + size <= range.first + range.second;
    });
    EXPECT_EQ(table.Contains(At(asked), size), inside) << asked << "+" << size;
  }
}

TEST(LocalPool, HandsOutSlicesUntilItIsEmptyAndTakesThemBack) {
  auto pool = LocalPool::Open(1 << 16, 0);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->capacity(), 1u << 16);
  std::vector<MutableBytes> leases;
  while (auto lease = (*pool)->TryAcquire(1 << 12)) leases.push_back(*lease);
  EXPECT_EQ(leases.size(), 16u);
  for (MutableBytes lease : leases) {
    EXPECT_TRUE((*pool)->Contains(lease.data(), lease.size()));
    (*pool)->Release(lease);
  }
  EXPECT_TRUE((*pool)->TryAcquire(1 << 16));
}

TEST(LocalPool, IgnoresLeasesThatAreNotItsOwn) {
  auto pool = LocalPool::Open(1 << 16, 0);
  ASSERT_TRUE(pool.ok());
  std::byte other[64];
  (*pool)->Release({});
  (*pool)->Release(other);
  const auto lease = (*pool)->TryAcquire(100);
  ASSERT_TRUE(lease);
  (*pool)->Release(lease->subspan(1));  // Not a lease: the middle of one.
  EXPECT_FALSE((*pool)->TryAcquire((1 << 16) - 64));
  (*pool)->Release(*lease);
  (*pool)->Release(*lease);
  EXPECT_TRUE((*pool)->TryAcquire(1 << 16));
}

TEST(LocalPool, ContainsNoRangeThatLeavesIt) {
  auto pool = LocalPool::Open(1 << 16, 0);
  ASSERT_TRUE(pool.ok());
  const auto lease = (*pool)->TryAcquire(1 << 16);
  ASSERT_TRUE(lease);
  EXPECT_TRUE((*pool)->Contains(lease->data(), 1 << 16));
  EXPECT_FALSE((*pool)->Contains(lease->data(), (1 << 16) + 1));
  EXPECT_FALSE((*pool)->Contains(lease->data() + 1, 1 << 16));
  EXPECT_FALSE((*pool)->Contains(lease->data(), SIZE_MAX));
}

TEST(RangeTable, RemovesARegistrationOfOneSize) {
  RangeTable table;
  ASSERT_TRUE(table.Add(At(1000), 500).ok());
  ASSERT_TRUE(table.Add(At(1000), 100).ok());
  EXPECT_EQ(table.Remove(At(1000), 499).code(), ErrorCode::kNotFound);
  EXPECT_EQ(table.Remove(At(1000), 500).code(), ErrorCode::kOk);
  EXPECT_FALSE(table.Contains(At(1000), 101));
  EXPECT_EQ(table.Remove(At(1000), 500).code(), ErrorCode::kNotFound);
  EXPECT_EQ(table.Remove(At(1000)).code(), ErrorCode::kOk);
  EXPECT_EQ(table.size(), 0u);
}

TEST(RangeTable, RemovesAllThatReachesIntoARange) {
  RangeTable table;
  for (const auto& [base, size] : {std::pair{100, 50}, {100, 10}, {149, 1}, {150, 5}, {90, 20}}) {
    ASSERT_TRUE(table.Add(At(base), size).ok());
  }
  EXPECT_EQ(table.RemoveWithin(At(200), 100).size(), 0u);
  EXPECT_EQ(table.RemoveWithin(At(120), 30).size(), 2u);  // (100, 50) and (149, 1).
  EXPECT_TRUE(table.Contains(At(100), 10));
  EXPECT_FALSE(table.Contains(At(100), 11));
  EXPECT_EQ(table.RemoveWithin(At(0), 4096).size(), 3u);
  EXPECT_EQ(table.size(), 0u);
}

TEST(RangeTable, ReadOnlyMemoryIsNotWritable) {
  auto* const pages = static_cast<std::byte*>(
      mmap(nullptr, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(mprotect(pages + 4096, 4096, PROT_READ), 0);
  RangeTable table;
  ASSERT_TRUE(table.Add(pages, 3 * 4096).ok());
  EXPECT_TRUE(table.Contains(pages, 4096));
  EXPECT_FALSE(table.Contains(pages, 4096, true));  // As a whole it was not.
  ASSERT_TRUE(table.Add(pages, 4096).ok());
  EXPECT_TRUE(table.Contains(pages, 4096, true));
  EXPECT_FALSE(table.Contains(pages, 4097, true));
  ASSERT_TRUE(table.Add(pages + 2 * 4096, 4096).ok());
  EXPECT_TRUE(table.Contains(pages + 2 * 4096, 4096, true));
  ASSERT_TRUE(table.Add(pages + 4095, 2).ok());
  EXPECT_FALSE(table.Contains(pages + 4095, 1 + 1, true));
  munmap(pages, 3 * 4096);
}

TEST(AwaitCallers, WaitsForThoseInsideAndNobodyElse) {
  runtime::RealRuntime runtime;
  base::Gate gate;
  EXPECT_TRUE(AwaitCallers(gate, runtime, runtime.NowMs() + 5'000).ok());
  const int inside = gate.Enter();
  EXPECT_EQ(AwaitCallers(gate, runtime, runtime.NowMs() + 20).code(), ErrorCode::kTransport);
  // The wait that gave up has turned the gate: the old caller is found on the other side.
  EXPECT_EQ(AwaitCallers(gate, runtime, runtime.NowMs() + 20).code(), ErrorCode::kTransport);
  gate.Leave(inside);
  EXPECT_TRUE(AwaitCallers(gate, runtime, runtime.NowMs() + 5'000).ok());
}

TEST(AwaitCallers, OneThatIsSlowToEnterIsNotMissed) {
  runtime::RealRuntime runtime;
  base::Gate gate;
  const int slow = gate.Enter();  // Counts where a turn that is over has been.
  gate.Turn();
  EXPECT_EQ(AwaitCallers(gate, runtime, runtime.NowMs() + 20).code(), ErrorCode::kTransport);
  gate.Leave(slow);
  EXPECT_TRUE(AwaitCallers(gate, runtime, runtime.NowMs() + 5'000).ok());
}

}  // namespace
}  // namespace mooncake::client

#include "obs/latency_buckets.h"

#include <gtest/gtest.h>

#include <memory>

namespace mooncake::obs {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint64_t kSecond = 1'000 * kMs;

TEST(LatencyBuckets, EveryBoundBelongsToItsBucketAndNotToTheNext) {
  for (int bucket = 0; bucket + 1 < LatencyBuckets::kBuckets; ++bucket) {
    const uint64_t bound_ns = LatencyBuckets::BoundNs(bucket);
    EXPECT_EQ(LatencyBuckets::BucketOf(bound_ns), bucket);
    EXPECT_EQ(LatencyBuckets::BucketOf(bound_ns + 1), bucket + 1);
  }
}

TEST(LatencyBuckets, CoversAllNumbers) {
  EXPECT_EQ(LatencyBuckets::BucketOf(0), 0);
  EXPECT_EQ(LatencyBuckets::BucketOf(UINT64_MAX), LatencyBuckets::kBuckets - 1);
  EXPECT_EQ(LatencyBuckets::BoundNs(LatencyBuckets::kBuckets - 2), 1'000 * kSecond);
}

TEST(LatencyBuckets, PercentilesAreWithinFivePercentUpToAThousandSeconds) {
  for (uint64_t unit_ns : {uint64_t{10'000}, kMs, 900 * kMs}) {
    auto buckets = std::make_unique<LatencyBuckets>();
    for (uint64_t i = 1; i <= 1'000; ++i) buckets->Observe(i * unit_ns);
    const HistogramSummary summary = buckets->Read().Summary();
    const auto unit = static_cast<double>(unit_ns);
    EXPECT_NEAR(static_cast<double>(summary.p50_ns), 500 * unit, 25 * unit);
    EXPECT_NEAR(static_cast<double>(summary.p90_ns), 900 * unit, 45 * unit);
    EXPECT_NEAR(static_cast<double>(summary.p99_ns), 990 * unit, 50 * unit);
    EXPECT_EQ(summary.max_ns, 1'000 * unit_ns);
    EXPECT_EQ(summary.sum_ns, 500'500 * unit_ns);
    EXPECT_EQ(summary.count, 1'000u);
  }
}

TEST(LatencyBuckets, ASingleValueIsEveryPercentile) {
  auto buckets = std::make_unique<LatencyBuckets>();
  buckets->Observe(42 * kSecond);
  const HistogramSummary summary = buckets->Read().Summary();
  EXPECT_NEAR(static_cast<double>(summary.p50_ns), 42e9, 2.1e9);
  EXPECT_EQ(summary.p50_ns, summary.p99_ns);
  EXPECT_LE(summary.p99_ns, summary.max_ns);
}

TEST(LatencyBuckets, NothingSeenIsZero) {
  const HistogramSummary summary = std::make_unique<LatencyBuckets>()->Read().Summary();
  EXPECT_EQ(summary.count, 0u);
  EXPECT_EQ(summary.p99_ns, 0u);
}

TEST(LatencyBuckets, BeyondTheScaleEndsAtTheLargestValueSeen) {
  auto buckets = std::make_unique<LatencyBuckets>();
  for (int i = 0; i < 100; ++i) buckets->Observe(2'000 * kSecond);
  const HistogramSummary summary = buckets->Read().Summary();
  EXPECT_GT(summary.p99_ns, 1'000 * kSecond);
  EXPECT_LE(summary.p99_ns, 2'000 * kSecond);
}

TEST(LatencyBuckets, CountsUpToABoundExactly) {
  auto buckets = std::make_unique<LatencyBuckets>();
  buckets->Observe(5 * kMs);
  buckets->Observe(5 * kMs + 1);
  EXPECT_EQ(buckets->Read().CountUpTo(5 * kMs), 1u);
  EXPECT_EQ(buckets->Read().CountUpTo(10 * kMs), 2u);
  EXPECT_EQ(buckets->Read().CountUpTo(1'000), 0u);
}

}  // namespace
}  // namespace mooncake::obs

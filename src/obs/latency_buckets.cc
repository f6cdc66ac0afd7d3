#include "obs/latency_buckets.h"

#include <algorithm>
#include <cmath>

namespace mooncake::obs {
namespace {

constexpr uint64_t kMinNs = 1'000;
constexpr int kOverflow = LatencyBuckets::kBuckets - 1;

// kDecadeNs[d] is the lower bound of decade d; the last one is the end of the scale.
constexpr auto kDecadeNs = [] {
  std::array<uint64_t, LatencyBuckets::kDecades + 1> bounds{};
  uint64_t bound = kMinNs;
  for (uint64_t& entry : bounds) {
    entry = bound;
    bound *= 10;
  }
  return bounds;
}();

}  // namespace

// All counters are relaxed: each stands for itself, and a reader that sees one observation's
// bucket but not yet its sum is off by that one.
void LatencyBuckets::Observe(uint64_t ns) {
  counts_[BucketOf(ns)].fetch_add(1, std::memory_order_relaxed);
  sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  uint64_t max_ns = max_ns_.load(std::memory_order_relaxed);
  while (ns > max_ns && !max_ns_.compare_exchange_weak(max_ns, ns, std::memory_order_relaxed)) {
  }
}

LatencyBuckets::Snapshot LatencyBuckets::Read() const {
  Snapshot snapshot;
  for (int i = 0; i < kBuckets; ++i) {
    snapshot.counts[i] = counts_[i].load(std::memory_order_relaxed);
    snapshot.count += snapshot.counts[i];
  }
  snapshot.sum_ns = sum_ns_.load(std::memory_order_relaxed);
  snapshot.max_ns = max_ns_.load(std::memory_order_relaxed);
  return snapshot;
}

int LatencyBuckets::BucketOf(uint64_t ns) {
  if (ns <= kMinNs) return 0;
  if (ns > kDecadeNs[kDecades]) return kOverflow;
  int decade = 0;
  while (ns > kDecadeNs[decade + 1]) ++decade;
  const uint64_t width_ns = kDecadeNs[decade] / 10;
  // Bounds belong to the bucket below them, as Prometheus has it ("le").
  const uint64_t within = (ns - kDecadeNs[decade] - 1) / width_ns;
  return 1 + decade * kBucketsPerDecade + static_cast<int>(within);
}

uint64_t LatencyBuckets::BoundNs(int bucket) {
  if (bucket == 0) return kMinNs;
  if (bucket >= kOverflow) return UINT64_MAX;
  const int decade = (bucket - 1) / kBucketsPerDecade;
  const int within = (bucket - 1) % kBucketsPerDecade;
  return kDecadeNs[decade] + static_cast<uint64_t>(within + 1) * (kDecadeNs[decade] / 10);
}

uint64_t LatencyBuckets::Snapshot::CountUpTo(uint64_t bound_ns) const {
  uint64_t total = 0;
  for (int i = 0; i <= BucketOf(bound_ns); ++i) total += counts[i];
  return total;
}

uint64_t LatencyBuckets::Snapshot::QuantileNs(double fraction) const {
  if (count == 0) return 0;
  const auto rank = std::max<uint64_t>(
      1, static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count))));
  uint64_t below = 0;
  int bucket = 0;
  while (bucket < kOverflow && below + counts[bucket] < rank) below += counts[bucket++];
  // Evenly spread within the bucket, which ends where the largest observation is.
  const uint64_t low_ns = bucket == 0 ? 0 : BoundNs(bucket - 1);
  const uint64_t high_ns = std::max(low_ns, std::min(BoundNs(bucket), max_ns));
  const double share =
      (static_cast<double>(rank - below) - 0.5) / static_cast<double>(counts[bucket]);
  return low_ns + static_cast<uint64_t>(static_cast<double>(high_ns - low_ns) * share);
}

void LatencyBuckets::Snapshot::Add(const Snapshot& other) {
  for (int i = 0; i < kBuckets; ++i) counts[i] += other.counts[i];
  count += other.count;
  sum_ns += other.sum_ns;
  max_ns = std::max(max_ns, other.max_ns);
}

HistogramSummary LatencyBuckets::Snapshot::Summary() const {
  return {count, sum_ns, max_ns, QuantileNs(0.5), QuantileNs(0.9), QuantileNs(0.99)};
}

}  // namespace mooncake::obs

// LatencyBuckets: a log-linear histogram of durations from 1 us to 1000 s, without a lock.
//
// Each power of ten is cut into 90 buckets of equal width, so that a bucket is at most a tenth
// of its bound wide and the bounds that Prometheus users expect (0.0025 s, 0.5 s) are bounds
// here too: cumulative counts at them are exact.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "obs/metrics.h"

namespace mooncake::obs {

class LatencyBuckets {
 public:
  static constexpr int kDecades = 9;
  static constexpr int kBucketsPerDecade = 90;
  // One for 1 us and less, one for more than 1000 s.
  static constexpr int kBuckets = kDecades * kBucketsPerDecade + 2;

  void Observe(uint64_t ns);

  // A copy of the counts. Observations that go on meanwhile are in it or not, one by one.
  struct Snapshot {
    std::array<uint64_t, kBuckets> counts{};
    uint64_t count = 0;
    uint64_t sum_ns = 0;
    uint64_t max_ns = 0;

    // The number of observations of at most `bound_ns`, which has to be a bucket's bound.
    uint64_t CountUpTo(uint64_t bound_ns) const;
    // The value that `fraction` of the observations do not exceed. 0: there are none.
    uint64_t QuantileNs(double fraction) const;
    HistogramSummary Summary() const;
    void Add(const Snapshot& other);
  };
  Snapshot Read() const;

  // The bucket that counts `ns`, and the largest value that a bucket counts.
  static int BucketOf(uint64_t ns);
  static uint64_t BoundNs(int bucket);

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
  std::atomic<uint64_t> sum_ns_{0};
  std::atomic<uint64_t> max_ns_{0};
};

}  // namespace mooncake::obs

#include "obs/prometheus_metrics.h"

#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "obs/latency_buckets.h"

namespace mooncake::obs {
namespace {

using Kind = MetricSample::Kind;

constexpr size_t kShards = 8;
constexpr size_t kCacheLine = 64;

// Spreads threads over the shards of all counters.
size_t ShardOfThisThread() {
  static std::atomic<size_t> next{0};
  thread_local const size_t shard = next.fetch_add(1, std::memory_order_relaxed) % kShards;
  return shard;
}

// Relaxed throughout: a counter orders nothing else.
class ShardedCounter final : public Counter {
 public:
  void Add(uint64_t n) override {
    shards_[ShardOfThisThread()].value.fetch_add(n, std::memory_order_relaxed);
  }
  uint64_t Value() const override {
    uint64_t total = 0;
    for (const Shard& shard : shards_) total += shard.value.load(std::memory_order_relaxed);
    return total;
  }

 private:
  struct alignas(kCacheLine) Shard {
    std::atomic<uint64_t> value{0};
  };
  std::array<Shard, kShards> shards_;
};

class AtomicGauge final : public Gauge {
 public:
  void Set(double value) override { value_.store(value, std::memory_order_relaxed); }
  void Add(double delta) override {
    double before = Value();
    while (!value_.compare_exchange_weak(before, before + delta, std::memory_order_relaxed)) {
    }
  }
  void RaiseTo(double value) override {
    double before = Value();
    while (!(before >= value) &&
           !value_.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
    }
  }
  double Value() const override { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class BucketHistogram final : public Histogram {
 public:
  void ObserveNs(uint64_t ns) override { buckets_.Observe(ns); }
  HistogramSummary Summary() const override { return Read().Summary(); }
  LatencyBuckets::Snapshot Read() const { return buckets_.Read(); }

 private:
  LatencyBuckets buckets_;
};

// Whether Prometheus takes it; another one is a bug of the code that chose the name.
bool IsMetricName(const std::string& name) {
  return !name.empty() &&
         name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
}

}  // namespace

// Exactly one of the three is there, as the family's kind says.
struct PrometheusMetrics::Series {
  std::unique_ptr<ShardedCounter> counter;
  std::unique_ptr<AtomicGauge> gauge;
  std::unique_ptr<BucketHistogram> histogram;
};

struct PrometheusMetrics::Family {
  Kind kind = Kind::kCounter;
  std::map<Labels, Series> series;
};

PrometheusMetrics::PrometheusMetrics(std::string tenant) : tenant_(std::move(tenant)) {}
PrometheusMetrics::~PrometheusMetrics() = default;

PrometheusMetrics::Series& PrometheusMetrics::Lookup(const std::string& name, const Labels& labels,
                                                     Kind kind) {
  MC_CHECK(IsMetricName(name));
  base::MutexLock lock(mu_);
  const auto [family, new_family] = families_.try_emplace(name);
  if (new_family) family->second.kind = kind;
  MC_CHECK(family->second.kind == kind);
  const auto [entry, new_series] = family->second.series.try_emplace(labels);
  Series& series = entry->second;
  if (!new_series) return series;
  switch (kind) {
    case Kind::kCounter: series.counter = std::make_unique<ShardedCounter>(); break;
    case Kind::kGauge: series.gauge = std::make_unique<AtomicGauge>(); break;
    case Kind::kHistogram: series.histogram = std::make_unique<BucketHistogram>(); break;
  }
  return series;
}

Counter& PrometheusMetrics::GetCounter(const std::string& name, const Labels& labels) {
  return *Lookup(name, labels, Kind::kCounter).counter;
}
Gauge& PrometheusMetrics::GetGauge(const std::string& name, const Labels& labels) {
  return *Lookup(name, labels, Kind::kGauge).gauge;
}
Histogram& PrometheusMetrics::GetHistogram(const std::string& name, const Labels& labels) {
  return *Lookup(name, labels, Kind::kHistogram).histogram;
}

MetricSet PrometheusMetrics::Export() {
  MetricSet set;
  base::MutexLock lock(mu_);
  for (const auto& [name, family] : families_) {
    for (const auto& [labels, series] : family.series) {
      MetricSet::Value value;
      if (series.counter) value.number = static_cast<double>(series.counter->Value());
      if (series.gauge) value.number = series.gauge->Value();
      if (series.histogram) {
        value.buckets = std::make_shared<const LatencyBuckets::Snapshot>(series.histogram->Read());
      }
      Labels full = labels;
      full.try_emplace("tenant", tenant_);
      set.Add(name, full, family.kind, std::move(value));
    }
  }
  return set;
}

std::string PrometheusMetrics::Text() { return Export().Text(tenant_); }

std::vector<MetricSample> PrometheusMetrics::Samples() {
  std::vector<MetricSample> samples;
  base::MutexLock lock(mu_);
  for (const auto& [name, family] : families_) {
    for (const auto& [labels, series] : family.series) {
      MetricSample sample{name, labels, family.kind, 0, {}};
      if (series.counter) sample.value = static_cast<double>(series.counter->Value());
      if (series.gauge) sample.value = series.gauge->Value();
      if (series.histogram) sample.histogram = series.histogram->Read().Summary();
      if (!std::isnan(sample.value)) samples.push_back(std::move(sample));
    }
  }
  return samples;
}

}  // namespace mooncake::obs

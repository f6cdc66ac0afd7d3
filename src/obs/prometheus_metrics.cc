#include "obs/prometheus_metrics.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <atomic>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "obs/latency_buckets.h"
#include "obs/process_usage.h"

namespace mooncake::obs {
namespace {

using Kind = MetricSample::Kind;

constexpr const char* kPrefix = "mooncake_store_";
constexpr size_t kShards = 8;
constexpr size_t kCacheLine = 64;

// The bounds of a histogram's buckets in the text, each one of LatencyBuckets'.
constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000 * kUs;
constexpr uint64_t kS = 1'000 * kMs;
constexpr uint64_t kTextBoundsNs[] = {
    1 * kUs,   5 * kUs,   10 * kUs,    25 * kUs, 50 * kUs,    100 * kUs, 250 * kUs,
    500 * kUs, 1 * kMs,   2'500 * kUs, 5 * kMs,  10 * kMs,    25 * kMs,  50 * kMs,
    100 * kMs, 250 * kMs, 500 * kMs,   1 * kS,   2'500 * kMs, 5 * kS,    10 * kS,
    25 * kS,   50 * kS,   100 * kS,    250 * kS, 500 * kS,    1'000 * kS};

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
  LatencyBuckets::Snapshot Read() const { return buckets_.Read(); }

 private:
  LatencyBuckets buckets_;
};

prometheus::ClientMetric::Histogram ToPrometheus(const LatencyBuckets::Snapshot& snapshot) {
  prometheus::ClientMetric::Histogram histogram;
  histogram.sample_count = snapshot.count;
  histogram.sample_sum = static_cast<double>(snapshot.sum_ns) / 1e9;
  for (uint64_t bound_ns : kTextBoundsNs) {
    histogram.bucket.push_back({snapshot.CountUpTo(bound_ns), static_cast<double>(bound_ns) / 1e9});
  }
  return histogram;
}

std::vector<prometheus::ClientMetric::Label> ToPrometheus(const Labels& labels,
                                                          const std::string& tenant) {
  std::vector<prometheus::ClientMetric::Label> result;
  for (const auto& [name, value] : labels) result.push_back({name, value});
  if (!labels.contains("tenant")) result.push_back({"tenant", tenant});
  return result;
}

prometheus::MetricType ToPrometheus(Kind kind) {
  switch (kind) {
    case Kind::kCounter: return prometheus::MetricType::Counter;
    case Kind::kGauge: return prometheus::MetricType::Gauge;
    case Kind::kHistogram: return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::MetricFamily ProcessFamily(std::string name, Kind kind, double value,
                                       const std::string& tenant) {
  prometheus::ClientMetric metric;
  metric.label = ToPrometheus(Labels{}, tenant);
  (kind == Kind::kCounter ? metric.counter.value : metric.gauge.value) = value;
  return {std::move(name), "", ToPrometheus(kind), {std::move(metric)}};
}

void AppendProcessFamilies(const std::string& tenant,
                           std::vector<prometheus::MetricFamily>& families) {
  const ProcessUsage usage = ReadProcessUsage();
  const auto append = [&](const char* name, Kind kind, double value) {
    families.push_back(ProcessFamily(name, kind, value, tenant));
  };
  append("process_cpu_seconds_total", Kind::kCounter, usage.cpu_seconds);
  append("process_resident_memory_bytes", Kind::kGauge, static_cast<double>(usage.resident_bytes));
  append("process_open_fds", Kind::kGauge, static_cast<double>(usage.open_fds));
  append("process_threads", Kind::kGauge, static_cast<double>(usage.threads));
}

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

std::string PrometheusMetrics::Text() {
  std::vector<prometheus::MetricFamily> result;
  {
    base::MutexLock lock(mu_);
    for (const auto& [name, family] : families_) {
      prometheus::MetricFamily rendered{kPrefix + name, "", ToPrometheus(family.kind), {}};
      for (const auto& [labels, series] : family.series) {
        if (series.gauge && std::isnan(series.gauge->Value())) continue;
        prometheus::ClientMetric& metric = rendered.metric.emplace_back();
        metric.label = ToPrometheus(labels, tenant_);
        if (series.counter) metric.counter.value = static_cast<double>(series.counter->Value());
        if (series.gauge) metric.gauge.value = series.gauge->Value();
        if (series.histogram) metric.histogram = ToPrometheus(series.histogram->Read());
      }
      if (!rendered.metric.empty()) result.push_back(std::move(rendered));
    }
  }
  AppendProcessFamilies(tenant_, result);
  return prometheus::TextSerializer().Serialize(result);
}

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

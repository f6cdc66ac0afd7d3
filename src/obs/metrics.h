// Metrics port: counters, gauges and latency histograms by name and labels. Names are given
// without the prefix `mooncake_store_`; the adapter adds it and the constant tenant label.
// Look a handle up once (it takes a lock), keep it, and use it freely: handles are lock-free,
// thread-safe and live as long as the Metrics object.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace mooncake {

using Labels = std::map<std::string, std::string>;

class Counter {
 public:
  virtual ~Counter() = default;
  virtual void Add(uint64_t n) = 0;
  virtual uint64_t Value() const = 0;
  void Increment() { Add(1); }
};

class Gauge {
 public:
  virtual ~Gauge() = default;
  // NaN hides the series until the next Set, for example of a segment that is gone.
  virtual void Set(double value) = 0;
  virtual void Add(double delta) = 0;      // For things in flight: +1 and -1.
  virtual void RaiseTo(double value) = 0;  // For maxima: sets the value unless it is larger.
  virtual double Value() const = 0;
};

// What a histogram has seen so far. Percentiles are within 5% (latency_buckets.h).
struct HistogramSummary {
  uint64_t count = 0;
  uint64_t sum_ns = 0;
  uint64_t max_ns = 0;
  uint64_t p50_ns = 0;
  uint64_t p90_ns = 0;
  uint64_t p99_ns = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void ObserveNs(uint64_t ns) = 0;
  virtual HistogramSummary Summary() const { return {}; }
};

// One series, for views other than Prometheus.
struct MetricSample {
  enum class Kind { kCounter, kGauge, kHistogram };

  std::string name;  // As it was looked up: without the prefix.
  Labels labels;     // Without the constant tenant label.
  Kind kind = Kind::kCounter;
  double value = 0;            // Of a counter or a gauge.
  HistogramSummary histogram;  // Of a histogram.
};

class Metrics {
 public:
  virtual ~Metrics() = default;
  // The same name and labels give the same handle. A name belongs to one kind of metric.
  virtual Counter& GetCounter(const std::string& name, const Labels& labels) = 0;
  virtual Gauge& GetGauge(const std::string& name, const Labels& labels) = 0;
  virtual Histogram& GetHistogram(const std::string& name, const Labels& labels) = 0;
  // Prometheus text format 0.0.4 of everything that was ever looked up.
  virtual std::string Text() = 0;
  // The same as data, by name and labels.
  virtual std::vector<MetricSample> Samples() { return {}; }
};

}  // namespace mooncake

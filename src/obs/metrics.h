// Metrics port: counters, gauges and latency histograms by name and labels. Names are given
// without the prefix `mooncake_store_`; the adapter adds it and the constant tenant label.
// Look a handle up once (it takes a lock), keep it, and use it freely: handles are lock-free,
// thread-safe and live as long as the Metrics object.
#pragma once

#include <cstdint>
#include <map>
#include <string>

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
  virtual void Set(double value) = 0;
};

class Histogram {
 public:
  virtual ~Histogram() = default;
  virtual void ObserveNs(uint64_t ns) = 0;
};

class Metrics {
 public:
  virtual ~Metrics() = default;
  virtual Counter& GetCounter(const std::string& name, const Labels& labels) = 0;
  virtual Gauge& GetGauge(const std::string& name, const Labels& labels) = 0;
  virtual Histogram& GetHistogram(const std::string& name, const Labels& labels) = 0;
  // Prometheus text format 0.0.4 of everything that was ever looked up.
  virtual std::string Text() = 0;
};

}  // namespace mooncake

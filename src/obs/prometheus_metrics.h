// PrometheusMetrics: metrics as atomics, rendered in the text format of Prometheus.
//
// Each object stands for itself: there is no process-wide registry, so several nodes in one
// process do not mix their numbers. Thread-safe. Adding to a counter or a histogram costs a few
// nanoseconds and takes no lock.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "obs/metric_set.h"
#include "obs/metrics.h"

namespace mooncake::obs {

class PrometheusMetrics final : public Metrics {
 public:
  // Every series carries the label tenant, unless its own labels have one.
  explicit PrometheusMetrics(std::string tenant);
  ~PrometheusMetrics() override;

  Counter& GetCounter(const std::string& name, const Labels& labels) override;
  Gauge& GetGauge(const std::string& name, const Labels& labels) override;
  Histogram& GetHistogram(const std::string& name, const Labels& labels) override;
  // All series as they are now, each with its tenant.
  MetricSet Export();
  // With process_* (CPU seconds, resident bytes, open files, threads), which have no prefix.
  std::string Text() override;
  std::vector<MetricSample> Samples() override;

 private:
  struct Series;
  struct Family;

  Series& Lookup(const std::string& name, const Labels& labels, MetricSample::Kind kind);

  const std::string tenant_;
  base::Mutex mu_;
  std::map<std::string, Family> families_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::obs

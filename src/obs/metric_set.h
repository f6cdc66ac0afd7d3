// MetricSet: what one or several Metrics objects say at one moment, to be merged and rendered.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "obs/latency_buckets.h"
#include "obs/metrics.h"

namespace mooncake::obs {

class MetricSet {
 public:
  struct Value {
    double number = 0;                                          // Of a counter or a gauge.
    std::shared_ptr<const LatencyBuckets::Snapshot> buckets{};  // Of a histogram.
  };

  // `labels` with the tenant. A series that is there already grows: counts, gauges and
  // histograms add up, and of gauges named *_max the larger one stays. A NaN is left out.
  void Add(const std::string& name, const Labels& labels, MetricSample::Kind kind, Value value);
  void Merge(const MetricSet& other);
  // Without the gauges, which say nothing once their source has gone.
  MetricSet Totals() const;

  // Prometheus' text format 0.0.4, with the prefix and with process_*, which have the tenant
  // label alone.
  std::string Text(const std::string& tenant) const;
  // Series that differ in the tenant alone are one.
  std::vector<MetricSample> SamplesOfAllTenants() const;

 private:
  struct Family {
    MetricSample::Kind kind = MetricSample::Kind::kCounter;
    std::map<Labels, Value> series;
  };
  std::map<std::string, Family> families_;
};

}  // namespace mooncake::obs

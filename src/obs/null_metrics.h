// NullMetrics: drops everything, for tests and tools that look at no metric.
#pragma once

#include <memory>
#include <string>

#include "obs/metrics.h"

namespace mooncake::obs {

class NullMetrics final : public Metrics {
 public:
  NullMetrics();
  Counter& GetCounter(const std::string&, const Labels&) override { return *counter_; }
  Gauge& GetGauge(const std::string&, const Labels&) override { return *gauge_; }
  Histogram& GetHistogram(const std::string&, const Labels&) override { return *histogram_; }
  std::string Text() override { return {}; }

 private:
  std::unique_ptr<Counter> counter_;
  std::unique_ptr<Gauge> gauge_;
  std::unique_ptr<Histogram> histogram_;
};

}  // namespace mooncake::obs

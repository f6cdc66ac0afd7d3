// SimMetrics: drops every metric but the one that a simulation checks at its end.
//
// For sim threads only.
#pragma once

#include <string>

#include "obs/null_metrics.h"

namespace mooncake::testing {

class SimMetrics final : public Metrics {
 public:
  // Values whose checksum was wrong when they were read.
  uint64_t mismatches() const { return mismatches_.Value(); }

  Counter& GetCounter(const std::string& name, const Labels& labels) override {
    const bool counts = name == "checksum_validation_total" && labels.contains("result") &&
                        labels.at("result") == "mismatch";
    return counts ? mismatches_ : dropped_.GetCounter(name, labels);
  }
  Gauge& GetGauge(const std::string& name, const Labels& labels) override {
    return dropped_.GetGauge(name, labels);
  }
  Histogram& GetHistogram(const std::string& name, const Labels& labels) override {
    return dropped_.GetHistogram(name, labels);
  }
  std::string Text() override { return {}; }

 private:
  class SimCounter final : public Counter {
   public:
    void Add(uint64_t n) override { value_ += n; }
    uint64_t Value() const override { return value_; }

   private:
    uint64_t value_ = 0;
  };

  obs::NullMetrics dropped_;
  SimCounter mismatches_;
};

}  // namespace mooncake::testing

#include "obs/null_metrics.h"

namespace mooncake::obs {
namespace {

class NullCounter final : public Counter {
 public:
  void Add(uint64_t) override {}
  uint64_t Value() const override { return 0; }
};

class NullGauge final : public Gauge {
 public:
  void Set(double) override {}
  void Add(double) override {}
  void RaiseTo(double) override {}
  double Value() const override { return 0; }
};

class NullHistogram final : public Histogram {
 public:
  void ObserveNs(uint64_t) override {}
};

}  // namespace

NullMetrics::NullMetrics()
    : counter_(std::make_unique<NullCounter>()),
      gauge_(std::make_unique<NullGauge>()),
      histogram_(std::make_unique<NullHistogram>()) {}

}  // namespace mooncake::obs

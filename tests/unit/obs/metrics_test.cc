#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "obs/null_metrics.h"
#include "obs/process_usage.h"
#include "obs/prometheus_metrics.h"
#include "runtime/real_runtime.h"

namespace mooncake::obs {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(PrometheusMetrics, RendersCountersWithPrefixAndTenant) {
  PrometheusMetrics metrics("acme");
  metrics.GetCounter("request_total", {{"operation", "put"}, {"result", "ok"}}).Add(3);
  EXPECT_THAT(metrics.Text(),
              HasSubstr("# TYPE mooncake_store_request_total counter\n"
                        "mooncake_store_request_total{operation=\"put\",result=\"ok\","
                        "tenant=\"acme\"} 3\n"));
}

TEST(PrometheusMetrics, WhatIsLookedUpStartsAtZero) {
  PrometheusMetrics metrics("t");
  metrics.GetCounter("a_total", {});
  metrics.GetGauge("b", {});
  metrics.GetHistogram("c_seconds", {});
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("mooncake_store_a_total{tenant=\"t\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("mooncake_store_b{tenant=\"t\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("mooncake_store_c_seconds_count{tenant=\"t\"} 0\n"));
}

TEST(PrometheusMetrics, TheSameNameAndLabelsGiveTheSameHandle) {
  PrometheusMetrics metrics("t");
  EXPECT_EQ(&metrics.GetCounter("a", {{"x", "1"}}), &metrics.GetCounter("a", {{"x", "1"}}));
  EXPECT_NE(&metrics.GetCounter("a", {{"x", "1"}}), &metrics.GetCounter("a", {{"x", "2"}}));
}

TEST(PrometheusMetrics, AnOwnTenantLabelWins) {
  PrometheusMetrics metrics("mine");
  metrics.GetGauge("object_routes", {{"tenant", "other"}}).Set(2);
  EXPECT_THAT(metrics.Text(), HasSubstr("mooncake_store_object_routes{tenant=\"other\"} 2\n"));
}

TEST(PrometheusMetrics, EscapesLabelValues) {
  PrometheusMetrics metrics("a\"b\\c\nd");
  metrics.GetCounter("x_total", {});
  EXPECT_THAT(metrics.Text(), HasSubstr("{tenant=\"a\\\"b\\\\c\\nd\"}"));
}

TEST(PrometheusMetrics, RendersHistogramsWithExactBounds) {
  PrometheusMetrics metrics("t");
  Histogram& histogram = metrics.GetHistogram("request_duration_seconds", {});
  histogram.ObserveNs(2'500'000);
  histogram.ObserveNs(2'500'001);
  histogram.ObserveNs(90'000'000'000);
  const std::string text = metrics.Text();
  const std::string bucket = "mooncake_store_request_duration_seconds_bucket{tenant=\"t\",le=";
  EXPECT_THAT(text, HasSubstr(bucket + "\"5e-05\"} 0\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "\"0.0025\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "\"0.005\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "\"1\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "\"100\"} 3\n"));
  EXPECT_THAT(text, HasSubstr(bucket + "\"+Inf\"} 3\n"));
  EXPECT_THAT(text, HasSubstr("request_duration_seconds_sum{tenant=\"t\"} 90.005"));
}

TEST(PrometheusMetrics, GaugesAddRaiseAndHide) {
  PrometheusMetrics metrics("t");
  Gauge& gauge = metrics.GetGauge("g", {});
  gauge.Add(2);
  gauge.Add(-0.5);
  EXPECT_EQ(gauge.Value(), 1.5);
  gauge.RaiseTo(1);
  EXPECT_EQ(gauge.Value(), 1.5);
  gauge.RaiseTo(7);
  EXPECT_EQ(gauge.Value(), 7);
  gauge.Set(NAN);
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("mooncake_store_g")));
  EXPECT_TRUE(metrics.Samples().empty());
  gauge.RaiseTo(1);
  EXPECT_THAT(metrics.Text(), HasSubstr("mooncake_store_g{tenant=\"t\"} 1\n"));
}

TEST(PrometheusMetrics, SamplesHoldValuesAndPercentiles) {
  PrometheusMetrics metrics("t");
  metrics.GetCounter("b_total", {{"result", "ok"}}).Add(5);
  Histogram& histogram = metrics.GetHistogram("a_seconds", {});
  for (int i = 0; i < 100; ++i) histogram.ObserveNs(3'000'000'000);
  const std::vector<MetricSample> samples = metrics.Samples();
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].name, "a_seconds");
  EXPECT_EQ(samples[0].kind, MetricSample::Kind::kHistogram);
  EXPECT_EQ(samples[0].histogram.count, 100u);
  EXPECT_NEAR(static_cast<double>(samples[0].histogram.p99_ns), 3e9, 0.15e9);
  EXPECT_EQ(samples[1].name, "b_total");
  EXPECT_EQ(samples[1].labels, (Labels{{"result", "ok"}}));
  EXPECT_EQ(samples[1].value, 5);
}

TEST(PrometheusMetrics, ReportsTheProcessWithoutPrefix) {
  const std::string text = PrometheusMetrics("t").Text();
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_threads"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + name + "{tenant=\"t\"} ")) << name;
  }
}

TEST(PrometheusMetrics, LosesNothingWhenThreadsCountTogether) {
  PrometheusMetrics metrics("t");
  {
    runtime::RealRuntime runtime;
    std::vector<std::unique_ptr<Thread>> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(runtime.Spawn("counter", [&] {
        Counter& counter = metrics.GetCounter("a_total", {});
        Gauge& gauge = metrics.GetGauge("b", {});
        Histogram& histogram = metrics.GetHistogram("c_seconds", {});
        for (int n = 0; n < 1'000; ++n) {
          counter.Increment();
          gauge.Add(1);
          histogram.ObserveNs(static_cast<uint64_t>(n) * 1'000);
          if (n % 250 == 0) metrics.Text();
        }
      }));
    }
  }
  const std::vector<MetricSample> samples = metrics.Samples();
  ASSERT_EQ(samples.size(), 3u);
  EXPECT_EQ(samples[0].value, 4'000);
  EXPECT_EQ(samples[1].value, 4'000);
  EXPECT_EQ(samples[2].histogram.count, 4'000u);
  EXPECT_EQ(samples[2].histogram.max_ns, 999'000u);
}

TEST(PrometheusMetricsDeathTest, ANameOfTwoKindsIsABug) {
  PrometheusMetrics metrics("t");
  metrics.GetCounter("a", {});
  EXPECT_DEATH(metrics.GetGauge("a", {}), "check failed");
  EXPECT_DEATH(metrics.GetGauge("Bad-Name", {}), "check failed");
}

TEST(NullMetrics, DropsEverything) {
  NullMetrics metrics;
  Counter& counter = metrics.GetCounter("a", {});
  counter.Add(5);
  metrics.GetGauge("b", {}).Set(1);
  metrics.GetHistogram("c", {}).ObserveNs(1);
  EXPECT_EQ(counter.Value(), 0u);
  EXPECT_EQ(metrics.Text(), "");
  EXPECT_TRUE(metrics.Samples().empty());
}

TEST(ProcessUsage, CountsThisProcess) {
  const ProcessUsage usage = ReadProcessUsage();
  EXPECT_GT(usage.resident_bytes, 100'000u);
  EXPECT_GE(usage.open_fds, 1u);
  EXPECT_GE(usage.threads, 1u);
}

}  // namespace
}  // namespace mooncake::obs

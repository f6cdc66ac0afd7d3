#include "obs/metric_set.h"

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "obs/process_usage.h"

namespace mooncake::obs {
namespace {

using Kind = MetricSample::Kind;

constexpr const char* kPrefix = "mooncake_store_";

// The bounds of a histogram's buckets in the text, each one of LatencyBuckets'.
constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000 * kUs;
constexpr uint64_t kS = 1'000 * kMs;
constexpr uint64_t kTextBoundsNs[] = {
    1 * kUs,   5 * kUs,   10 * kUs,    25 * kUs, 50 * kUs,    100 * kUs, 250 * kUs,
    500 * kUs, 1 * kMs,   2'500 * kUs, 5 * kMs,  10 * kMs,    25 * kMs,  50 * kMs,
    100 * kMs, 250 * kMs, 500 * kMs,   1 * kS,   2'500 * kMs, 5 * kS,    10 * kS,
    25 * kS,   50 * kS,   100 * kS,    250 * kS, 500 * kS,    1'000 * kS};

prometheus::ClientMetric::Histogram ToPrometheus(const LatencyBuckets::Snapshot& snapshot) {
  prometheus::ClientMetric::Histogram histogram;
  histogram.sample_count = snapshot.count;
  histogram.sample_sum = static_cast<double>(snapshot.sum_ns) / 1e9;
  for (uint64_t bound_ns : kTextBoundsNs) {
    histogram.bucket.push_back({snapshot.CountUpTo(bound_ns), static_cast<double>(bound_ns) / 1e9});
  }
  return histogram;
}

std::vector<prometheus::ClientMetric::Label> ToPrometheus(const Labels& labels) {
  std::vector<prometheus::ClientMetric::Label> result;
  for (const auto& [name, value] : labels) result.push_back({name, value});
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
  metric.label = {{"tenant", tenant}};
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

void Grow(const std::string& name, Kind kind, MetricSet::Value&& more, MetricSet::Value* value) {
  if (kind == Kind::kHistogram) {
    auto sum = std::make_shared<LatencyBuckets::Snapshot>(*value->buckets);
    sum->Add(*more.buckets);
    value->buckets = std::move(sum);
  } else if (kind == Kind::kGauge && name.ends_with("_max")) {
    value->number = std::max(value->number, more.number);
  } else {
    value->number += more.number;
  }
}

}  // namespace

void MetricSet::Add(const std::string& name, const Labels& labels, Kind kind, Value value) {
  if (std::isnan(value.number)) return;
  const auto [family, new_family] = families_.try_emplace(name);
  if (new_family) family->second.kind = kind;
  MC_CHECK(family->second.kind == kind);
  const auto [entry, new_series] = family->second.series.try_emplace(labels, value);
  if (!new_series) Grow(name, kind, std::move(value), &entry->second);
}

void MetricSet::Merge(const MetricSet& other) {
  for (const auto& [name, family] : other.families_) {
    for (const auto& [labels, value] : family.series) Add(name, labels, family.kind, value);
  }
}

MetricSet MetricSet::Totals() const {
  MetricSet totals;
  for (const auto& [name, family] : families_) {
    if (family.kind != Kind::kGauge) totals.families_.emplace(name, family);
  }
  return totals;
}

std::string MetricSet::Text(const std::string& tenant) const {
  std::vector<prometheus::MetricFamily> result;
  for (const auto& [name, family] : families_) {
    prometheus::MetricFamily rendered{kPrefix + name, "", ToPrometheus(family.kind), {}};
    for (const auto& [labels, value] : family.series) {
      prometheus::ClientMetric& metric = rendered.metric.emplace_back();
      metric.label = ToPrometheus(labels);
      switch (family.kind) {
        case Kind::kCounter: metric.counter.value = value.number; break;
        case Kind::kGauge: metric.gauge.value = value.number; break;
        case Kind::kHistogram: metric.histogram = ToPrometheus(*value.buckets); break;
      }
    }
    result.push_back(std::move(rendered));
  }
  AppendProcessFamilies(tenant, result);
  return prometheus::TextSerializer().Serialize(result);
}

std::vector<MetricSample> MetricSet::SamplesOfAllTenants() const {
  MetricSet merged;
  for (const auto& [name, family] : families_) {
    for (const auto& [labels, value] : family.series) {
      Labels rest = labels;
      rest.erase("tenant");
      merged.Add(name, rest, family.kind, value);
    }
  }
  std::vector<MetricSample> samples;
  for (const auto& [name, family] : merged.families_) {
    for (const auto& [labels, value] : family.series) {
      MetricSample sample{name, labels, family.kind, value.number, {}};
      if (value.buckets) sample.histogram = value.buckets->Summary();
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

}  // namespace mooncake::obs

#include "obs/metrics_pages.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

namespace mooncake::obs {
namespace {

using Json = nlohmann::ordered_json;
using Key = std::vector<std::string>;  // The values of the labels that make a row.

constexpr uint64_t kUs = 1'000;
constexpr size_t kBottlenecksMax = 10;

std::string LabelOf(const MetricSample& sample, const char* name) {
  const auto found = sample.labels.find(name);
  return found == sample.labels.end() ? std::string() : found->second;
}

uint64_t Whole(double value) { return value > 0 ? static_cast<uint64_t>(value) : 0; }

struct Row {
  uint64_t calls = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  std::string scope;
  HistogramSummary latency;

  uint64_t total_us() const { return latency.sum_ns / kUs; }
};

// The rows of operations, by operation and result; those that never happened are left out.
std::map<std::pair<std::string, std::string>, Row> OperationRows(
    const std::vector<MetricSample>& samples) {
  std::map<std::pair<std::string, std::string>, Row> rows;
  for (const MetricSample& sample : samples) {
    const bool counted = sample.name == "operation_total";
    const bool in = sample.name == "operation_bytes_in_total";
    const bool out = sample.name == "operation_bytes_out_total";
    const bool timed = sample.name == "request_duration_seconds";
    if (!counted && !in && !out && !timed) continue;
    Row& row = rows[{LabelOf(sample, "operation"), LabelOf(sample, "result")}];
    if (counted) row.calls = Whole(sample.value);
    if (in) row.bytes_in = Whole(sample.value);
    if (out) row.bytes_out = Whole(sample.value);
    if (timed) {
      row.latency = sample.histogram;
      row.scope = LabelOf(sample, "scope");
    }
  }
  std::erase_if(rows, [](const auto& entry) { return entry.second.calls == 0; });
  return rows;
}

// By the convention of the names.
const char* KindOf(const std::string& operation, const Row& row) {
  if (operation.starts_with("control_")) return "control";
  const bool part = operation.find("_stage_") != std::string::npos ||
                    operation.find("_remote_") != std::string::npos;
  if (part) return "phase";
  return row.scope == "foreground" ? "api" : "internal";
}

Json ProcessOf(const ProcessUsage& usage) {
  return {{"cpu_seconds_total", usage.cpu_seconds},
          {"resident_memory_bytes", usage.resident_bytes},
          {"open_fds", usage.open_fds},
          {"threads", usage.threads}};
}

// Gauges of the same name family, joined by the labels that they share.
using Joined = std::map<Key, std::map<std::string, double>>;

Joined Join(const std::vector<MetricSample>& samples, const std::vector<const char*>& labels,
            const std::set<std::string>& names) {
  Joined joined;
  for (const MetricSample& sample : samples) {
    if (!names.contains(sample.name)) continue;
    Key key;
    key.reserve(labels.size());
    for (const char* label : labels) key.push_back(LabelOf(sample, label));
    joined[key][sample.name] += sample.value;
  }
  return joined;
}

Json RuntimesOf(const std::vector<MetricSample>& samples) {
  const std::vector<std::pair<const char*, const char*>> fields = {
      {"lease_expires_at_ms", "runtime_lease_expires_at_ms"},
      {"lease_age_ms", "runtime_lease_age_ms"},
      {"reachable_peers", "reachable_peers"},
      {"membership_nodes", "membership_nodes"},
      {"heartbeat_consecutive_failures", "heartbeat_consecutive_failures"},
      {"heartbeat_last_success_ms", "heartbeat_last_success_ms"}};
  std::set<std::string> names;
  for (const auto& [field, name] : fields) names.insert(name);
  const Joined joined = Join(samples, {"runtime"}, names);
  std::map<std::string, std::string> states;
  for (const MetricSample& sample : samples) {
    if (sample.name != "runtime_status" || sample.value == 0) continue;
    states[LabelOf(sample, "runtime")] = LabelOf(sample, "state");
  }
  Json rows = Json::array();
  for (const auto& [runtime, state] : states) {
    Json& row = rows.emplace_back(Json{{"runtime", runtime}, {"state", state}});
    const auto found = joined.find({runtime});
    for (const auto& [field, name] : fields) {
      row[field] =
          found != joined.end() && found->second.contains(name) ? Whole(found->second.at(name)) : 0;
    }
  }
  return rows;
}

Joined SegmentsOf(const std::vector<MetricSample>& samples) {
  return Join(samples, {"runtime", "segment", "state", "tier"},
              {"segment_capacity_bytes", "segment_used_bytes"});
}

uint64_t At(const std::map<std::string, double>& values, const char* name) {
  const auto found = values.find(name);
  return found == values.end() ? 0 : Whole(found->second);
}

Json SegmentTotals(const std::vector<MetricSample>& samples) {
  std::map<std::string, std::array<uint64_t, 3>> by_runtime;
  std::array<uint64_t, 3> all{};
  for (const auto& [key, values] : SegmentsOf(samples)) {
    const std::array<uint64_t, 3> one{1, At(values, "segment_capacity_bytes"),
                                      At(values, "segment_used_bytes")};
    std::array<uint64_t, 3>& own = by_runtime[key[0]];
    for (size_t i = 0; i < one.size(); ++i) {
      own[i] += one[i];
      all[i] += one[i];
    }
  }
  const auto row = [](const std::array<uint64_t, 3>& sums) {
    return Json{{"count", sums[0]}, {"capacity_bytes", sums[1]}, {"used_bytes", sums[2]}};
  };
  Json totals = row(all);
  totals["by_runtime"] = Json::array();
  for (const auto& [runtime, sums] : by_runtime) {
    Json entry = Json::object();
    entry["runtime"] = runtime;
    entry.update(row(sums));
    totals["by_runtime"].push_back(std::move(entry));
  }
  return totals;
}

void AddLatency(const HistogramSummary& latency, uint64_t calls, Json* row) {
  (*row)["latency_total_us"] = latency.sum_ns / kUs;
  (*row)["latency_avg_us"] = calls > 0 ? latency.sum_ns / kUs / calls : 0;
  (*row)["latency_max_us"] = latency.max_ns / kUs;
  (*row)["latency_p50_us"] = latency.p50_ns / kUs;
  (*row)["latency_p90_us"] = latency.p90_ns / kUs;
  (*row)["latency_p99_us"] = latency.p99_ns / kUs;
}

Json OperationsOf(const std::vector<MetricSample>& samples) {
  std::map<std::string, double> inflight;
  for (const MetricSample& sample : samples) {
    if (sample.name == "request_inflight") inflight[LabelOf(sample, "operation")] = sample.value;
  }
  Json rows = Json::array();
  for (const auto& [key, row] : OperationRows(samples)) {
    Json& out = rows.emplace_back(Json{{"operation", key.first},
                                       {"kind", KindOf(key.first, row)},
                                       {"scope", row.scope.empty() ? "background" : row.scope},
                                       {"result", key.second},
                                       {"calls_total", row.calls},
                                       {"bytes_in_total", row.bytes_in},
                                       {"bytes_out_total", row.bytes_out}});
    AddLatency(row.latency, row.calls, &out);
    out["inflight"] = Whole(inflight[key.first]);
  }
  return rows;
}

struct MetadataRow {
  uint64_t calls = 0;
  HistogramSummary latency;
};

// By backend, operation and result.
std::map<Key, MetadataRow> MetadataRows(const std::vector<MetricSample>& samples) {
  std::map<Key, MetadataRow> rows;
  for (const MetricSample& sample : samples) {
    const bool counted = sample.name == "metadata_operation_total";
    if (!counted && sample.name != "metadata_operation_duration_seconds") continue;
    MetadataRow& row =
        rows[{LabelOf(sample, "backend"), LabelOf(sample, "operation"), LabelOf(sample, "result")}];
    if (counted) {
      row.calls = Whole(sample.value);
    } else {
      row.latency = sample.histogram;
    }
  }
  std::erase_if(rows, [](const auto& entry) { return entry.second.calls == 0; });
  return rows;
}

Json MetadataOf(const std::vector<MetricSample>& samples) {
  Json rows = Json::array();
  for (const auto& [key, row] : MetadataRows(samples)) {
    Json& out = rows.emplace_back(Json{{"backend", key[0]},
                                       {"operation", key[1]},
                                       {"result", key[2]},
                                       {"calls_total", row.calls}});
    AddLatency(row.latency, row.calls, &out);
  }
  return rows;
}

Json TransportOf(const std::vector<MetricSample>& samples) {
  Json rows = Json::array();
  for (const auto& [key, values] : Join(samples, {"direction", "peer_kind", "result"},
                                        {"transport_operation_total", "transport_bytes_total"})) {
    rows.push_back({{"direction", key[0]},
                    {"peer_kind", key[1]},
                    {"result", key[2].empty() ? Json(nullptr) : Json(key[2])},
                    {"operations_total", At(values, "transport_operation_total")},
                    {"bytes_total", At(values, "transport_bytes_total")}});
  }
  return rows;
}

Json CountsOf(const std::vector<MetricSample>& samples, const std::string& name,
              const char* second) {
  Json rows = Json::array();
  for (const MetricSample& sample : samples) {
    if (sample.name != name || sample.value == 0) continue;
    rows.push_back({{"operation", LabelOf(sample, "operation")},
                    {second, LabelOf(sample, second)},
                    {"total", Whole(sample.value)}});
  }
  return rows;
}

Json BottlenecksOf(const std::vector<MetricSample>& samples) {
  struct Entry {
    const char* source;
    std::string name;
    std::string result;
    uint64_t calls;
    HistogramSummary latency;
  };
  std::vector<Entry> entries;
  for (const auto& [key, row] : OperationRows(samples)) {
    if (row.latency.sum_ns == 0) continue;
    entries.push_back({"operation", key.first, key.second, row.calls, row.latency});
  }
  for (const auto& [key, row] : MetadataRows(samples)) {
    entries.push_back({"metadata", key[0] + ":" + key[1], key[2], row.calls, row.latency});
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.latency.sum_ns, a.latency.p99_ns, a.name, a.result) >
           std::tie(b.latency.sum_ns, b.latency.p99_ns, b.name, b.result);
  });
  if (entries.size() > kBottlenecksMax) entries.resize(kBottlenecksMax);
  Json rows = Json::array();
  for (const Entry& entry : entries) {
    rows.push_back({{"source", entry.source},
                    {"name", entry.name},
                    {"result", entry.result},
                    {"calls_total", entry.calls},
                    {"latency_total_us", entry.latency.sum_ns / kUs},
                    {"latency_p99_us", entry.latency.p99_ns / kUs},
                    {"reason", "most time in total"}});
  }
  return rows;
}

// Names come from settings, so they may be anything.
std::string Dump(const Json& page) {
  return page.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

std::string StatsPage(const std::vector<MetricSample>& samples, const ProcessUsage& usage) {
  Json page{{"schema_version", kPagesSchemaVersion}, {"process", ProcessOf(usage)}};
  Json& operations = page["operations"] = Json::array();
  for (const auto& [key, row] : OperationRows(samples)) {
    operations.push_back({{"operation", key.first},
                          {"result", key.second},
                          {"calls_total", row.calls},
                          {"bytes_in_total", row.bytes_in},
                          {"bytes_out_total", row.bytes_out},
                          {"latency_total_us", row.total_us()},
                          {"latency_max_us", row.latency.max_ns / kUs}});
  }
  page["runtimes"] = RuntimesOf(samples);
  Json& segments = page["segments"] = Json::array();
  for (const auto& [key, values] : SegmentsOf(samples)) {
    segments.push_back({{"runtime", key[0]},
                        {"segment", key[1]},
                        {"state", key[2]},
                        {"tier", key[3]},
                        {"capacity_bytes", At(values, "segment_capacity_bytes")},
                        {"used_bytes", At(values, "segment_used_bytes")}});
  }
  return Dump(page);
}

std::string BreakdownPage(const std::vector<MetricSample>& samples, const ProcessUsage& usage,
                          const std::string& tenant) {
  Json page{
      {"schema_version", kPagesSchemaVersion}, {"tenant", tenant}, {"process", ProcessOf(usage)}};
  page["operations"] = OperationsOf(samples);
  page["items"] = CountsOf(samples, "operation_items_total", "result");
  page["soft_failures"] = CountsOf(samples, "soft_failure_total", "reason");
  page["metadata_operations"] = MetadataOf(samples);
  page["transport"] = TransportOf(samples);
  page["runtimes"] = RuntimesOf(samples);
  page["segments"] = SegmentTotals(samples);
  page["bottlenecks"] = BottlenecksOf(samples);
  page["note"] = "Sums since the process began, over all of its stores. Percentiles are within 5%.";
  return Dump(page);
}

}  // namespace mooncake::obs

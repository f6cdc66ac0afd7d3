#include "bench/report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace mooncake::bench {
namespace {

using Json = nlohmann::ordered_json;

// Three decimals are a nanosecond; more would be noise.
double Rounded(double value) { return std::round(value * 1e3) / 1e3; }
double Ratio(double a, double b) { return b == 0 ? 0 : Rounded(a / b); }

// "limits.memcpy_us" for nested names.
void Flatten(const std::string& prefix, const Json& json, std::vector<std::string>& names,
             std::vector<std::string>& values) {
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      Flatten(prefix + name + ".", value, names, values);
    } else {
      names.push_back(prefix + name);
      values.push_back(value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

std::string Csv(const Json& json) {
  std::vector<std::string> names, values;
  Flatten("", json, names, values);
  return fmt::format("{}\n{}\n", fmt::join(names, ","), fmt::join(values, ","));
}

std::string Text(const Json& json) {
  std::vector<std::string> names, values;
  Flatten("", json, names, values);
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += fmt::format("{:<26} {}\n", names[i], values[i]);
  return text;
}

std::string Written(const Json& json, Output output) {
  switch (output) {
    case Output::kJson: return json.dump(2) + "\n";
    case Output::kCsv: return Csv(json);
    case Output::kText: break;
  }
  return Text(json);
}

void AddPercentiles(const Samples& samples, Json& json) {
  json["p50_us"] = Rounded(samples.Us(0.5));
  json["p90_us"] = Rounded(samples.Us(0.9));
  json["p99_us"] = Rounded(samples.Us(0.99));
  json["p999_us"] = Rounded(samples.Us(0.999));
}

// The limit of a call: the bare transfer of its bytes. Of a mixed run, by the share of each kind.
double LimitUs(const Options& options, const Limits& limits) {
  const bool remote = options.layout == "remote";
  const bool asks = options.read_interface.ends_with("is_exist");
  const double put = remote ? limits.tcp_put.samples.Us(0.5) : limits.copy.samples.Us(0.5);
  double get = remote ? limits.tcp_get.samples.Us(0.5) : limits.copy.samples.Us(0.5);
  if (asks) get = remote ? limits.tcp_round_trip.samples.Us(0.5) : 0;
  if (options.mode == "put") return put;
  if (options.mode == "get") return get;
  const double reads = options.read_percent / 100.0;
  return reads * get + (1 - reads) * put;
}

Json LimitsJson(const Options& options, const Outcome& outcome, const Limits& limits) {
  Json json;
  json["tcp_round_trip_us"] = Rounded(limits.tcp_round_trip.samples.Us(0.5));
  if (options.Reads()) {
    json["tcp_get_us"] = Rounded(limits.tcp_get.samples.Us(0.5));
    json["tcp_get_gib_per_s"] = Rounded(limits.tcp_get.GibPerS());
  }
  if (options.Writes()) {
    json["tcp_put_us"] = Rounded(limits.tcp_put.samples.Us(0.5));
    json["tcp_put_gib_per_s"] = Rounded(limits.tcp_put.GibPerS());
  }
  json["memcpy_us"] = Rounded(limits.copy.samples.Us(0.5));
  json["memcpy_gib_per_s"] = Rounded(limits.copy.GibPerS());
  const double limit_us = LimitUs(options, limits);
  json["raw"] = options.layout == "remote" ? "tcp" : "memcpy";
  json["raw_us"] = Rounded(limit_us);
  json["p50_per_raw"] = Ratio(outcome.samples.Us(0.5), limit_us);
  return json;
}

}  // namespace

void Limits::Merge(const Limits& other) {
  tcp_round_trip.Merge(other.tcp_round_trip);
  tcp_get.Merge(other.tcp_get);
  tcp_put.Merge(other.tcp_put);
  copy.Merge(other.copy);
}

std::string BenchReport(const Options& options, const Outcome& outcome, const Limits& limits) {
  Json json;
  json["mode"] = options.mode;
  json["layout"] = options.layout;
  if (options.Writes()) json["write_interface"] = options.write_interface;
  if (options.Reads()) json["read_interface"] = options.read_interface;
  json["concurrency"] = options.concurrency;
  json["pinned"] = options.Splits();
  json["value_size"] = options.value_bytes;
  json["batch_size"] = std::max(options.Writes() ? options.WriteBatch() : 1,
                                options.Reads() ? options.ReadBatch() : 1);
  json["key_space_size"] = options.keys;
  json["ops"] = outcome.ops;
  json["items"] = outcome.items;
  json["errors"] = outcome.errors;
  json["bytes"] = outcome.bytes;
  json["seconds"] = Rounded(outcome.seconds);
  json["ops_per_s"] = Ratio(static_cast<double>(outcome.ops), outcome.seconds);
  json["gib_per_s"] = Ratio(static_cast<double>(outcome.bytes) / kPerGiB, outcome.seconds);
  AddPercentiles(outcome.samples, json);
  json["limits"] = LimitsJson(options, outcome, limits);
  return Written(json, options.output);
}

std::string VerifyReport(const Options& options, const Verified& verified) {
  Json json;
  json["mode"] = "verify";
  json["layout"] = options.layout;
  json["keys"] = options.keys;
  json["ops"] = verified.ops;
  json["verified"] = verified.verified;
  json["wrong"] = verified.wrong;
  json["misses"] = verified.misses;
  json["errors"] = verified.errors;
  json["bytes"] = verified.bytes;
  json["seconds"] = Rounded(verified.seconds);
  json["ops_per_s"] = Ratio(static_cast<double>(verified.ops), verified.seconds);
  json["gib_per_s"] = Ratio(static_cast<double>(verified.bytes) / kPerGiB, verified.seconds);
  AddPercentiles(verified.samples, json);
  if (!verified.first_wrong.empty()) json["first_wrong"] = verified.first_wrong;
  return Written(json, options.output);
}

}  // namespace mooncake::bench

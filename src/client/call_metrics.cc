#include "client/call_metrics.h"

#include <string>

namespace mooncake::client {

namespace {
constexpr const char* kNames[kOperations] = {"put",
                                             "batch_put",
                                             "get",
                                             "batch_get",
                                             "get_into_ranges",
                                             "is_exist",
                                             "batch_is_exist",
                                             "get_size",
                                             "query_route",
                                             "remove",
                                             "batch_remove",
                                             "remove_all",
                                             "register_buffer",
                                             "unregister_buffer"};
constexpr const char* kResults[3] = {"ok", "miss", "error"};
}  // namespace

CallMetrics::CallMetrics(Metrics& metrics) : metrics_(metrics) {
  for (size_t op = 0; op < kOperations; ++op) {
    Series& series = series_[op];
    for (size_t result = 0; result < 3; ++result) {
      const Labels labels{{"operation", kNames[op]}, {"result", kResults[result]}};
      series.total[result] = &metrics.GetCounter("operation_total", labels);
      series.duration[result] = &metrics.GetHistogram("request_duration_seconds", labels);
    }
    const Labels operation{{"operation", kNames[op]}};
    series.bytes_in = &metrics.GetCounter("operation_bytes_in_total", operation);
    series.bytes_out = &metrics.GetCounter("operation_bytes_out_total", operation);
  }
}

void CallMetrics::Call::Item(ErrorCode code) {
  if (code == ErrorCode::kOk) return;
  if (code == ErrorCode::kNotFound) {
    missed_ = true;
  } else {
    failed_ = true;
  }
  // Every soft failure has a reason. Looked up here: failures are rare, misses are counted once
  // per call above.
  metrics_.metrics_
      .GetCounter("soft_failure_total", {{"operation", kNames[static_cast<size_t>(operation_)]},
                                         {"reason", std::string(ErrorName(code))}})
      .Increment();
}

void CallMetrics::Note(const Call& call, uint64_t ns) {
  Series& series = series_[static_cast<size_t>(call.operation_)];
  const Outcome outcome = call.failed_ ? kError : call.missed_ ? kMiss : kOk;
  series.total[outcome]->Increment();
  series.duration[outcome]->ObserveNs(ns);
  if (call.bytes_in_ > 0) series.bytes_in->Add(call.bytes_in_);
  if (call.bytes_out_ > 0) series.bytes_out->Add(call.bytes_out_);
}

}  // namespace mooncake::client

#include "client/call_metrics.h"

#include <algorithm>
#include <string>

#include "mooncake/observability.h"

namespace mooncake::client {
namespace {

constexpr uint64_t kUs = 1'000;
constexpr uint64_t kMs = 1'000 * kUs;

struct NamedOperation {
  std::string_view name;
  const char* flow;
  bool looks_up;  // Can miss.
};

constexpr std::array<NamedOperation, kOperations> kNames{{
    {"put", "put", false},
    {"upsert", "put", false},
    {"put_parts", "put", false},
    {"batch_put", "put", false},
    {"put_batch", "put", false},
    {"upsert_batch", "put", false},
    {"put_from", "put", false},
    {"upsert_from", "put", false},
    {"batch_put_from", "put", false},
    {"batch_put_from_multi_buffers", "put", false},
    {"get", "get", true},
    {"get_buffer", "get", true},
    {"batch_get", "get", true},
    {"get_batch", "get", true},
    {"batch_get_buffer", "get", true},
    {"get_into", "get", true},
    {"batch_get_into", "get", true},
    {"batch_get_into_multi_buffers", "get", true},
    {"get_into_ranges", "get", true},
    {"is_exist", "get", true},
    {"batch_is_exist", "get", true},
    {"get_size", "get", true},
    {"query_route", "get", true},
    {"remove", "remove", true},
    {"batch_remove", "remove", true},
    {"remove_all", "remove", false},
    {"register_buffer", "control", false},
    {"unregister_buffer", "control", true},
}};
static_assert(kNames.back().name == "unregister_buffer");

constexpr const char* kResults[] = {"ok", "miss", "conflict", "error"};

// Why an item of a call has no good outcome: by its ErrorReason where it has one, else by its code.
constexpr std::pair<ErrorCode, const char*> kReasonNames[] = {
    {ErrorCode::kOk, "other"},
    {ErrorCode::kOk, "evicted"},
    {ErrorCode::kOk, "owner_dead"},
    {ErrorCode::kOk, "timeout"},
    {ErrorCode::kOk, "other_scope"},
    {ErrorCode::kOk, "too_large"},
    {ErrorCode::kOk, "over_quota"},
    {ErrorCode::kNotFound, "absent"},
    {ErrorCode::kInvalidState, "invalid_state"},
    {ErrorCode::kMetadata, "metadata"},
    {ErrorCode::kTransport, "transport"},
    {ErrorCode::kConflict, "conflict"},
    {ErrorCode::kStaleEpoch, "stale_epoch"},
    {ErrorCode::kUnsupported, "unsupported"},
    {ErrorCode::kBackPressure, "back_pressure"},
    {ErrorCode::kChecksum, "checksum"},
    {ErrorCode::kTooSmall, "too_small"},
    {ErrorCode::kInvalidArgument, "invalid_argument"},
    {ErrorCode::kNoSpace, "no_space"},
};
constexpr size_t kTimeoutReason = static_cast<size_t>(ErrorReason::kTimeout);
static_assert(std::string_view(kReasonNames[kTimeoutReason].second) == "timeout");
static_assert(std::string_view(kReasonNames[static_cast<size_t>(ErrorReason::kOverQuota)].second) ==
              "over_quota");

size_t ReasonOf(ErrorCode code, ErrorReason reason) {
  if (reason != ErrorReason::kUnspecified) return static_cast<size_t>(reason);
  for (size_t i = 0; i < std::size(kReasonNames); ++i) {
    if (code != ErrorCode::kOk && kReasonNames[i].first == code) return i;
  }
  return 0;
}

const NamedOperation& NamedOf(Operation operation) {
  return kNames[static_cast<size_t>(operation)];
}

// "store." and the name, which live as long as the process.
std::string_view SpanNameOf(Operation operation) {
  static const std::array<std::string, kOperations>& names = *[] {
    auto made = std::make_unique<std::array<std::string, kOperations>>();
    for (size_t i = 0; i < kOperations; ++i) (*made)[i] = "store." + std::string(kNames[i].name);
    return made.release();
  }();
  return names[static_cast<size_t>(operation)];
}

// A place for each name, so that one comparison finds it.
constexpr size_t kPlacesMax = 256;
constexpr size_t kNameMin = 3;  // Characters.
constexpr size_t PlaceOf(std::string_view name) {
  size_t hash = name.size() * 1;
  for (size_t at : {size_t{0}, name.size() / 4, name.size() - 3, name.size() - 1}) {
    hash = hash * 3 + static_cast<unsigned char>(name[at]);
  }
  return hash % kPlacesMax;
}
constexpr std::array<uint8_t, kPlacesMax> MakePlaces() {
  std::array<uint8_t, kPlacesMax> places{};
  places.fill(UINT8_MAX);
  for (size_t i = 0; i < kOperations; ++i) {
    uint8_t& place = places[PlaceOf(kNames[i].name)];
    if (place != UINT8_MAX) return {};  // Two names want it: caught below.
    place = static_cast<uint8_t>(i);
  }
  return places;
}
constexpr std::array<uint8_t, kPlacesMax> kPlaces = MakePlaces();
static_assert(kPlaces != std::array<uint8_t, kPlacesMax>{}, "choose another hash");

Labels RequestLabels(Operation operation) {
  return {{"operation", std::string(NameOf(operation))}, {"scope", "foreground"}};
}

Labels ResultLabels(Operation operation, size_t outcome) {
  return {{"operation", std::string(NameOf(operation))}, {"result", kResults[outcome]}};
}

}  // namespace

std::string_view NameOf(Operation operation) { return NamedOf(operation).name; }

Operation OperationOf(std::string_view name, Operation otherwise) {
  if (name.size() < kNameMin) return otherwise;
  const uint8_t index = kPlaces[PlaceOf(name)];
  return index < kOperations && kNames[index].name == name ? static_cast<Operation>(index)
                                                           : otherwise;
}

CallMetrics::CallMetrics(Metrics& metrics, uint64_t limit_ms, std::string tenant)
    : metrics_(metrics),
      tracer_(obs::Tracer::OfProcess()),
      limit_ms_(limit_ms),
      tenant_(std::move(tenant)) {
  static_assert(std::size(kReasonNames) == kReasons);
  for (size_t i = 0; i < kOperations; ++i) {
    const auto operation = static_cast<Operation>(i);
    series_[i].started = &metrics.GetCounter("request_started_total", RequestLabels(operation));
    for (size_t outcome = 0; outcome < kOutcomes; ++outcome) {
      if (outcome == (kNames[i].looks_up ? kConflict : kMiss)) continue;
      CatchUp("operation_total", ResultLabels(operation, outcome), 0);
    }
  }
}

CallMetrics::Outcome CallMetrics::OutcomeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk: return kOk;
    case ErrorCode::kNotFound: return kMiss;
    case ErrorCode::kConflict: return kConflict;
    default: return kError;
  }
}

// Threads that race for a handle get the same one.
Counter& CallMetrics::Count(std::atomic<Counter*>& handle, const char* name, Operation operation,
                            const char* label, std::string_view value) {
  Counter* counter = handle.load(std::memory_order_acquire);
  if (counter == nullptr) {
    counter = &metrics_.GetCounter(
        name, {{"operation", std::string(NameOf(operation))}, {label, std::string(value)}});
    handle.store(counter, std::memory_order_release);
  }
  return *counter;
}

CallMetrics::Call::Call(CallMetrics& metrics, Runtime& runtime, Operation operation)
    : metrics_(metrics),
      runtime_(runtime),
      scope_(ApiScope::OfThread()),
      operation_(OperationOf(scope_.name, operation)),
      start_ns_(runtime.NowNs()),
      request_(metrics.tracer_.enabled() ? metrics.tracer_.Begin() : 0) {
  metrics_.series_[static_cast<size_t>(operation_)].started->Increment();
  if (metrics.tracer_.enabled()) {
    root_.Begin(runtime, request_, NameOf(operation_), NamedOf(operation_).flow, metrics.tenant_);
  }
}

CallMetrics::Call::~Call() {
  for (; scope_.refused > 0; --scope_.refused) Item(ErrorCode::kInvalidArgument);
  metrics_.Note(*this, runtime_.NowNs() - start_ns_);
}

void CallMetrics::Call::Item(ErrorCode code, ErrorReason reason) {
  ++items_[OutcomeOf(code)];
  if (code != ErrorCode::kOk) metrics_.NoteReason(*this, code, reason);
}

void CallMetrics::NoteReason(const Call& call, ErrorCode code, ErrorReason finer) {
  size_t reason = ReasonOf(code, finer);
  if (code == ErrorCode::kTransport && call.runtime_.NowNs() - call.start_ns_ >= limit_ms_ * kMs) {
    reason = kTimeoutReason;
  }
  Series& series = series_[static_cast<size_t>(call.operation_)];
  Count(series.reasons[reason], "soft_failure_total", call.operation_, "reason",
        kReasonNames[reason].second)
      .Increment();
}

Histogram& CallMetrics::DurationOf(Operation operation, Outcome outcome) {
  std::atomic<Histogram*>& handle =
      series_[static_cast<size_t>(operation)].results[outcome].duration;
  Histogram* duration = handle.load(std::memory_order_acquire);
  if (duration == nullptr) {
    Labels labels = RequestLabels(operation);
    labels["result"] = kResults[outcome];
    duration = &metrics_.GetHistogram("request_duration_seconds", labels);
    handle.store(duration, std::memory_order_release);
  }
  return *duration;
}

void CallMetrics::Note(const Call& call, uint64_t ns) {
  Outcome outcome = kOk;
  for (size_t i = 0; i < kOutcomes; ++i) {
    if (call.items_[i] > 0) outcome = static_cast<Outcome>(i);  // The worst comes last.
  }
  Series& series = series_[static_cast<size_t>(call.operation_)];
  for (size_t i = 0; i < kOutcomes; ++i) {
    const uint64_t more = call.items_[i] - (i == outcome ? 1 : 0);
    if (more == 0) continue;
    series.results[i].more_items.fetch_add(more, std::memory_order_relaxed);
    // Who sees the call below sees this too: together they never say too much.
    std::atomic_thread_fence(std::memory_order_release);
  }
  Handles& result = series.results[outcome];
  if (call.bytes_in_ > 0) {
    Count(result.bytes_in, "operation_bytes_in_total", call.operation_, "result", kResults[outcome])
        .Add(call.bytes_in_);
  }
  if (call.bytes_out_ > 0) {
    Count(result.bytes_out, "operation_bytes_out_total", call.operation_, "result",
          kResults[outcome])
        .Add(call.bytes_out_);
  }
  DurationOf(call.operation_, outcome).ObserveNs(ns);
  if (call.request_ != 0) Trace(call, outcome, ns);
}

void CallMetrics::Trace(const Call& call, Outcome outcome, uint64_t ns) {
  obs::TraceSpan span;
  span.name = SpanNameOf(call.operation_);
  span.operation = NameOf(call.operation_);
  span.flow = NamedOf(call.operation_).flow;
  span.result = kResults[outcome];
  span.tenant = tenant_;
  span.request = call.request_;
  span.id = call.root_.context().span;
  span.start_unix_ns = call.root_.context().start_unix_ns;
  span.duration_ns = ns;
  for (const uint64_t items : call.items_) span.item_count += items;
  span.bytes_in = call.bytes_in_;
  span.bytes_out = call.bytes_out_;
  tracer_.Write(span);
}

void CallMetrics::CatchUp(const char* name, const Labels& labels, uint64_t source) {
  Counter& counter = metrics_.GetCounter(name, labels);
  const uint64_t now = counter.Value();
  if (source > now) counter.Add(source - now);
}

uint64_t CallMetrics::RefreshResult(Operation operation, size_t outcome) {
  const Handles& handles = series_[static_cast<size_t>(operation)].results[outcome];
  const Histogram* duration = handles.duration.load(std::memory_order_acquire);
  const HistogramSummary summary = duration != nullptr ? duration->Summary() : HistogramSummary{};
  std::atomic_thread_fence(std::memory_order_acquire);
  const uint64_t more_items = handles.more_items.load(std::memory_order_relaxed);
  if (summary.count == 0 && more_items == 0) return 0;
  const auto items = static_cast<int64_t>(summary.count + more_items);
  Labels labels = ResultLabels(operation, outcome);
  CatchUp("operation_total", labels, summary.count);
  CatchUp("operation_items_total", labels, static_cast<uint64_t>(std::max<int64_t>(items, 0)));
  CatchUp("operation_latency_microseconds_total", labels, summary.sum_ns / kUs);
  metrics_.GetGauge("operation_latency_microseconds_max", labels)
      .RaiseTo(static_cast<double>(summary.max_ns) / static_cast<double>(kUs));
  labels["scope"] = "foreground";
  CatchUp("request_total", labels, summary.count);
  return summary.count;
}

void CallMetrics::RefreshOperation(Operation operation) {
  const Series& series = series_[static_cast<size_t>(operation)];
  // Ended first: what starts meanwhile must not make the difference negative.
  uint64_t ended = 0;
  uint64_t bytes[2] = {};
  for (size_t i = 0; i < kOutcomes; ++i) {
    ended += RefreshResult(operation, i);
    const Counter* in = series.results[i].bytes_in.load(std::memory_order_acquire);
    const Counter* out = series.results[i].bytes_out.load(std::memory_order_acquire);
    bytes[0] += in != nullptr ? in->Value() : 0;
    bytes[1] += out != nullptr ? out->Value() : 0;
  }
  const uint64_t started = series.started->Value();
  metrics_.GetGauge("request_inflight", RequestLabels(operation))
      .Set(started > ended ? static_cast<double>(started - ended) : 0);
  for (size_t out = 0; out < 2; ++out) {
    if (bytes[out] == 0) continue;
    Labels labels = RequestLabels(operation);
    labels["direction"] = out != 0 ? "out" : "in";
    CatchUp("request_bytes_total", labels, bytes[out]);
  }
}

void CallMetrics::Refresh() {
  base::MutexLock lock(refresh_mu_);
  for (size_t i = 0; i < kOperations; ++i) RefreshOperation(static_cast<Operation>(i));
}

}  // namespace mooncake::client

#include "obs/phase_span.h"

#include <utility>

namespace mooncake::obs {

namespace {
constexpr uint64_t kNsPerMs = 1'000'000;
}  // namespace

TraceContext& TraceContext::OfThread() {
  static thread_local constinit TraceContext context;
  return context;
}

void RootSpan::Begin(Runtime& runtime, uint64_t request, std::string_view operation,
                     std::string_view flow, std::string_view tenant) {
  TraceContext& current = TraceContext::OfThread();
  outer_ = current;
  context_ = {request, Tracer::OfProcess().NextSpan(), operation,      flow,
              tenant,  runtime.WallMs() * kNsPerMs,    runtime.NowNs()};
  current = context_;
  active_ = true;
}

void RootSpan::End() { TraceContext::OfThread() = outer_; }

void PhaseSpan::Begin(Runtime& runtime, std::string_view name) {
  TraceContext& context = TraceContext::OfThread();
  Tracer& tracer = Tracer::OfProcess();
  const bool in_call = !context.operation.empty();
  span_.request = in_call ? context.request : tracer.Begin();
  if (span_.request == 0) return;  // Not in the sample.
  runtime_ = &runtime;
  start_ns_ = runtime.NowNs();
  span_.name = name;
  span_.id = tracer.NextSpan();
  span_.result = "ok";
  if (in_call) {
    span_.operation = context.operation;
    span_.flow = context.flow;
    span_.tenant = context.tenant;
    span_.parent = context.span;
    span_.start_unix_ns = context.start_unix_ns + (start_ns_ - context.start_ns);
  } else {
    span_.operation = name;
    span_.flow = "background";
    span_.start_unix_ns = runtime.WallMs() * kNsPerMs;
  }
  outer_span_ = std::exchange(context.span, span_.id);
}

void PhaseSpan::End() {
  if (runtime_ == nullptr) return;
  TraceContext::OfThread().span = outer_span_;
  span_.duration_ns = runtime_->NowNs() - start_ns_;
  if (!skip_when_empty_ || span_.item_count > 0) Tracer::OfProcess().Write(span_);
  runtime_ = nullptr;
}

}  // namespace mooncake::obs

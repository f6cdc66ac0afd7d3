#include "obs/phase_span.h"

#include <utility>

namespace mooncake::obs {

namespace {
constexpr uint64_t kNsPerMs = 1'000'000;

// The call that a thread has made last, when it is traced.
struct LastCall {
  Runtime* runtime = nullptr;
  TraceContext context;
  uint64_t end_ns = 0;

  static LastCall& OfThread() {
    static thread_local constinit LastCall call;
    return call;
  }
};
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
  runtime_ = &runtime;
}

void RootSpan::End() {
  LastCall::OfThread() = {runtime_, context_, runtime_->NowNs()};
  TraceContext::OfThread() = outer_;
}

void ForgetLastCall() { LastCall::OfThread().runtime = nullptr; }

void WriteAfterCall(std::string_view name) {
  const LastCall call = std::exchange(LastCall::OfThread(), {});
  if (call.runtime == nullptr || call.context.request == 0) return;
  Tracer& tracer = Tracer::OfProcess();
  TraceSpan span;
  span.request = call.context.request;
  span.id = tracer.NextSpan();
  span.parent = call.context.span;
  span.name = name;
  span.result = "ok";
  span.operation = call.context.operation;
  span.flow = call.context.flow;
  span.tenant = call.context.tenant;
  span.start_unix_ns = call.context.start_unix_ns + (call.end_ns - call.context.start_ns);
  span.duration_ns = call.runtime->NowNs() - call.end_ns;
  tracer.Write(span);
}

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

// PhaseSpan: a part of a call in the trace, for as long as it lives; and RootSpan, the call itself.
//
//   obs::PhaseSpan span(core.runtime, "data.transfer_read");
//   span.items(refs.size());
//
// Parts belong to the call that the same thread is in; parts of nothing are written as work in the
// background. Without a trace all of it is one load and a branch.
#pragma once

#include <cstdint>
#include <string_view>

#include "obs/tracer.h"
#include "runtime/runtime.h"

namespace mooncake::obs {

// The call that a thread is in. Its views outlive the call.
struct TraceContext {
  uint64_t request = 0;  // 0: none that is traced.
  uint64_t span = 0;     // The innermost one.
  std::string_view operation;
  std::string_view flow;
  std::string_view tenant;
  uint64_t start_unix_ns = 0;
  uint64_t start_ns = 0;  // The same moment on the runtime's clock.

  static TraceContext& OfThread();
};

// Makes the thread's later spans parts of this call. `request` 0: it is not in the sample, and
// neither are its parts.
class RootSpan {
 public:
  RootSpan() = default;
  ~RootSpan() {
    if (runtime_ != nullptr) End();
  }
  RootSpan(const RootSpan&) = delete;
  RootSpan& operator=(const RootSpan&) = delete;

  void Begin(Runtime& runtime, uint64_t request, std::string_view operation, std::string_view flow,
             std::string_view tenant);
  // Of the call that has begun; for the span about it.
  const TraceContext& context() const { return context_; }

 private:
  void End();
  Runtime* runtime_ = nullptr;  // Set: it has begun.
  TraceContext context_;
  TraceContext outer_;
};

// For bindings: between the two, WriteAfterCall writes the time since the end of the call that this
// thread made as a last part of it, if it made one. REQUIRES: the store of that call is there.
void ForgetLastCall();
void WriteAfterCall(std::string_view name);

class PhaseSpan {
 public:
  // `name` is a constant: the phase, a point, and what is done.
  PhaseSpan(Runtime& runtime, std::string_view name) {
    if (Tracer::OfProcess().enabled()) [[unlikely]] {
      Begin(runtime, name);
    }
  }
  ~PhaseSpan() {
    if (runtime_ != nullptr) [[unlikely]] {
      End();
    }
  }
  PhaseSpan(const PhaseSpan&) = delete;
  PhaseSpan& operator=(const PhaseSpan&) = delete;

  void items(uint64_t count) { span_.item_count = count; }
  void peers(uint64_t count) { span_.peer_count = count; }
  void bytes_in(uint64_t bytes) { span_.bytes_in = bytes; }
  void bytes_out(uint64_t bytes) { span_.bytes_out = bytes; }
  void backend(std::string_view name) { span_.backend = name; }  // A text that outlives the trace.
  void result(std::string_view result) { span_.result = result; }
  void skip_when_empty() { skip_when_empty_ = true; }  // Not written if it had no items.
  void End();                                          // Before its time; idempotent.

 private:
  void Begin(Runtime& runtime, std::string_view name);

  Runtime* runtime_ = nullptr;  // Set: it is traced.
  bool skip_when_empty_ = false;
  uint64_t outer_span_ = 0;
  uint64_t start_ns_ = 0;
  TraceSpan span_;
};

}  // namespace mooncake::obs

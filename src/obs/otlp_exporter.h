// OtlpExporter: sends spans to a collector, as OTLP in JSON over HTTP. Who adds a span never waits:
// one thread sends, from a queue of fixed length, and what does not fit is counted and dropped.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "mooncake/result.h"
#include "obs/trace_span.h"
#include "runtime/runtime.h"

namespace mooncake::obs {

struct OtlpOptions {
  std::string endpoint;  // http:// or https://, with the path: "http://localhost:4318/v1/traces".
  std::map<std::string, std::string> headers;   // Sent with each request.
  std::map<std::string, std::string> resource;  // service.name, service.instance.id, ...
  uint64_t timeout_ms = 3'000;  // Of connecting, of sending and of the answer, each.
};

class OtlpExporter {
 public:
  struct Counts {
    uint64_t exported = 0;
    uint64_t queue_full = 0;  // Dropped: the collector is too slow, or away.
    uint64_t refused = 0;     // Dropped: it did not take them, several times.
  };

  // Takes no connection yet. kInvalidArgument: the endpoint is no such URL, or has a user or a
  // password, which are for a header.
  static Result<std::unique_ptr<OtlpExporter>> Start(Runtime& runtime, OtlpOptions options);
  OtlpExporter(Runtime& runtime, OtlpOptions options);  // For Start, which checks the options.
  ~OtlpExporter();
  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  void Add(TraceSpan span);
  // Waits until what was added before is sent or dropped, at most that long. False: it was not.
  bool Flush(uint64_t limit_ms);
  // Sends what it can in that time and ends. Afterwards spans are dropped. Idempotent.
  void Stop(uint64_t limit_ms);

  const OtlpOptions& options() const { return options_; }
  Counts counts() const;
  std::string last_error() const;

 private:
  class Connection;
  void Loop();
  std::vector<TraceSpan> Take();
  void Send(Connection& connection, const std::vector<TraceSpan>& batch);
  void Settle(size_t count, bool sent);

  Runtime& runtime_;
  const OtlpOptions options_;
  const uint64_t seed_;
  mutable base::Mutex mu_;
  std::vector<TraceSpan> queue_ MC_GUARDED_BY(mu_);
  uint64_t added_ MC_GUARDED_BY(mu_) = 0;    // Into the queue, ever.
  uint64_t settled_ MC_GUARDED_BY(mu_) = 0;  // Of those, sent or dropped.
  Counts counts_ MC_GUARDED_BY(mu_);
  std::string last_error_ MC_GUARDED_BY(mu_);
  std::atomic<bool> stop_{false};
  std::atomic<bool> hurry_{false};  // Somebody waits: no pauses.
  std::unique_ptr<Event> work_;
  std::unique_ptr<Event> progress_;  // After each batch, and at the end.
  std::unique_ptr<Thread> thread_;   // Last: it uses the rest.
};

}  // namespace mooncake::obs

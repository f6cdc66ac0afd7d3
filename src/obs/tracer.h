// Tracer: writes down what a process does, as spans: to a file of JSON lines, to a collector
// (OTLP), to the log, or to all of them, for short looks at where time goes. Off, it costs its
// users one load and a branch. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "mooncake/result.h"
#include "obs/otlp_exporter.h"
#include "obs/trace_span.h"
#include "runtime/runtime.h"

namespace mooncake::obs {

class Tracer {
 public:
  struct State {
    bool enabled = false;
    std::string file;      // Empty: none.
    std::string endpoint;  // Of the collector; empty: none.
    std::string service_name = "mooncake-store";
    std::string service_instance_id;
    double sample_ratio = 1;
    std::string last_error;
    uint64_t written = 0;  // Spans and lines about items, to the file.
    OtlpExporter::Counts export_counts;
  };

  Tracer();
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  bool wants_items() const { return enabled() && items_.load(std::memory_order_relaxed); }

  // Appends to this file from now on; missing folders are made. Does not enable. `within` must
  // hold the file when it is not empty, also after symbolic links.
  Status OpenFile(const std::string& path, const std::string& within);
  void CloseFile();  // Disables, unless spans go elsewhere as well.
  // Sends spans to a collector from now on. Does not enable. The service's names go into
  // `options.resource` where it has none. kInvalidArgument: no such endpoint; kConflict: spans
  // go to another one, which cannot be changed any more.
  Status StartExport(Runtime& runtime, OtlpOptions options);
  // Sends what it can within the time; spans are not exported after that.
  void StopExport(uint64_t limit_ms);
  void LogSpans(bool wanted) { log_.store(wanted); }
  // kInvalidArgument: there is nowhere to write to.
  Status Enable(bool on);
  void SetItems(bool wanted, bool full_keys);
  // kConflict: an exporter runs, whose names and ratio cannot be changed any more.
  Status SetSampleRatio(double ratio);  // 0 to 1.
  Status SetService(const std::string* name, const std::string* instance_id);
  void Flush();  // To the disk and to the collector; some seconds at most.
  State state() const;

  // The id of a request that begins; 0: it is not in the sample.
  uint64_t Begin();
  uint64_t NextSpan() { return next_span_.fetch_add(1, std::memory_order_relaxed); }
  void Write(const TraceSpan& span);
  void WriteItems(uint64_t request, const TracedItems& items);

  static Tracer& OfProcess();  // Never destroyed.

 private:
  static void LockForFork();
  static void UnlockAfterFork();
  static void UnlockInChild();
  void Append(std::string_view line);
  bool HasSinkLocked() const MC_REQUIRES(mu_);
  void RefreshLocked() MC_REQUIRES(mu_);

  std::atomic<bool> enabled_{false};
  std::atomic<bool> items_{false};
  std::atomic<bool> full_keys_{false};
  std::atomic<bool> log_{false};
  std::atomic<bool> has_file_{false};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> next_span_{1};
  std::atomic<uint64_t> sampled_below_;  // Of 2^53.
  // Null until it is started, and then for ever the same one.
  std::atomic<OtlpExporter*> exporter_{nullptr};
  std::atomic<bool> exports_{false};
  std::unique_ptr<OtlpExporter> owned_exporter_;
  mutable base::Mutex mu_;
  int fd_ MC_GUARDED_BY(mu_) = -1;
  bool on_ MC_GUARDED_BY(mu_) = false;
  State state_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::obs

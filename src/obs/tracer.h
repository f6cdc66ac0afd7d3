// Tracer: writes what a process does to a file of JSON lines, one for each call, for short looks
// at where time goes. Off, it costs its users one load and a branch. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "mooncake/result.h"

namespace mooncake::obs {

struct TraceSpan {
  std::string_view operation;  // The call, as it was made.
  std::string_view flow;       // put, get, remove or control.
  std::string_view result;
  std::string_view tenant;
  uint64_t start_unix_ms = 0;
  uint64_t duration_us = 0;
  uint64_t item_count = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
};

struct TracedItem {
  std::string_view key;
  uint64_t size = 0;      // What the caller offered: the value's size, or the room for it.
  int64_t read_len = -1;  // -1: nothing was read.
  int32_t status = 0;     // 0, or the negative code that the caller gets.
};

struct TracedItems {
  std::string_view operation;
  std::string_view tenant;
  std::string_view domain;
  std::string_view object_set;
  std::string_view runtime_id;
  uint64_t unix_ms = 0;
  std::span<const TracedItem> items;
};

class Tracer {
 public:
  struct State {
    bool enabled = false;
    std::string file;  // Empty: none, so nothing can be enabled.
    std::string service_name = "mooncake-store";
    std::string service_instance_id;
    double sample_ratio = 1;
    std::string last_error;
  };

  Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  bool enabled() const { return enabled_.load(std::memory_order_relaxed); }
  bool wants_items() const { return enabled() && items_.load(std::memory_order_relaxed); }

  // Appends to this file from now on; missing folders are made. Does not enable. `within` must
  // hold the file when it is not empty, also after symbolic links.
  Status OpenFile(const std::string& path, const std::string& within);
  void CloseFile();  // Disables.
  Status Enable(bool on);
  void SetItems(bool wanted, bool full_keys);
  void SetSampleRatio(double ratio);  // 0 to 1.
  void SetService(const std::string* name, const std::string* instance_id);
  void Flush();  // To the disk.
  State state() const;

  // The id of a request that begins; 0: it is not in the sample.
  uint64_t Begin();
  void Write(uint64_t request, const TraceSpan& span);
  void WriteItems(uint64_t request, const TracedItems& items);

  static Tracer& OfProcess();  // Never destroyed.

 private:
  static void LockForFork();
  static void UnlockAfterFork();
  void Append(std::string_view line);

  std::atomic<bool> enabled_{false};
  std::atomic<bool> items_{false};
  std::atomic<bool> full_keys_{false};
  std::atomic<uint64_t> next_request_{1};
  std::atomic<uint64_t> sampled_below_;  // Of 2^53.
  mutable base::Mutex mu_;
  int fd_ MC_GUARDED_BY(mu_) = -1;
  State state_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::obs

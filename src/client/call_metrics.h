// CallMetrics: counts the outcomes of a store's calls, by operation, one handle per series,
// looked up once.
#pragma once

#include <array>
#include <cstdint>

#include "mooncake/result.h"
#include "obs/metrics.h"
#include "runtime/runtime.h"

namespace mooncake::client {

enum class Operation : uint8_t {
  kPut,
  kBatchPut,
  kGet,
  kBatchGet,
  kGetRanges,
  kIsExist,
  kBatchIsExist,
  kGetSize,
  kQueryRoute,
  kRemove,
  kBatchRemove,
  kRemoveAll,
  kRegisterBuffer,
  kUnregisterBuffer,
};
inline constexpr size_t kOperations = 14;

class CallMetrics {
 public:
  explicit CallMetrics(Metrics& metrics);

  // One call with its items. Construct at the start; the outcomes come in by Item and Bytes;
  // the destructor writes them down. The call's own result is its worst item's.
  class Call {
   public:
    Call(CallMetrics& metrics, Runtime& runtime, Operation operation)
        : metrics_(metrics), runtime_(runtime), operation_(operation), start_ns_(runtime.NowNs()) {}
    ~Call() { metrics_.Note(*this, runtime_.NowNs() - start_ns_); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void Item(ErrorCode code);
    void BytesIn(uint64_t bytes) { bytes_in_ += bytes; }
    void BytesOut(uint64_t bytes) { bytes_out_ += bytes; }

   private:
    friend class CallMetrics;
    CallMetrics& metrics_;
    Runtime& runtime_;
    const Operation operation_;
    const uint64_t start_ns_;
    uint64_t bytes_in_ = 0;
    uint64_t bytes_out_ = 0;
    bool missed_ = false;
    bool failed_ = false;
  };

 private:
  enum Outcome : uint8_t { kOk, kMiss, kError };
  struct Series {
    std::array<Counter*, 3> total{};
    std::array<Histogram*, 3> duration{};
    Counter* bytes_in = nullptr;
    Counter* bytes_out = nullptr;
  };
  void Note(const Call& call, uint64_t ns);

  Metrics& metrics_;
  std::array<Series, kOperations> series_;
};

}  // namespace mooncake::client

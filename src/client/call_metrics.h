// CallMetrics: counts the outcomes of a store's calls, by the operation that was called, one
// handle per series, looked up once.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "mooncake/observability.h"
#include "mooncake/result.h"
#include "obs/metrics.h"
#include "obs/phase_span.h"
#include "obs/tracer.h"
#include "runtime/runtime.h"

namespace mooncake::client {

// In the order of the table of names.
enum class Operation : uint8_t {
  kPut,
  kUpsert,
  kPutParts,
  kBatchPut,
  kPutBatch,
  kUpsertBatch,
  kPutFrom,
  kUpsertFrom,
  kBatchPutFrom,
  kBatchPutFromMultiBuffers,
  kGet,
  kGetBuffer,
  kBatchGet,
  kGetBatch,
  kBatchGetBuffer,
  kGetInto,
  kBatchGetInto,
  kBatchGetIntoMultiBuffers,
  kGetIntoRanges,
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
inline constexpr size_t kOperations = 28;

// By its name, else `otherwise`.
Operation OperationOf(std::string_view name, Operation otherwise);
std::string_view NameOf(Operation operation);

class CallMetrics {
 public:
  // `limit_ms`: how long a call may take; one that broke off at it timed out.
  CallMetrics(Metrics& metrics, uint64_t limit_ms, std::string tenant);

  // One call with its items. Construct at the start; the outcomes come in by Item and Bytes;
  // the destructor writes them down. The call's own result is its worst item's.
  class Call {
   public:
    Call(CallMetrics& metrics, Runtime& runtime, Operation operation);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    void Item(ErrorCode code, ErrorReason reason = ErrorReason::kUnspecified);
    template <typename T>
    void Item(const Result<T>& result) {
      if (result.ok()) return Item(ErrorCode::kOk);
      Item(result.code(), result.error().reason);
    }
    void BytesIn(uint64_t bytes) { bytes_in_ += bytes; }
    void BytesOut(uint64_t bytes) { bytes_out_ += bytes; }

    Operation operation() const { return operation_; }
    uint64_t request() const { return request_; }  // Of the trace; 0: this call is not traced.

   private:
    friend class CallMetrics;
    CallMetrics& metrics_;
    Runtime& runtime_;
    ApiScope::State& scope_;
    const Operation operation_;
    const uint64_t start_ns_;
    const uint64_t request_;
    uint64_t bytes_in_ = 0;
    uint64_t bytes_out_ = 0;
    std::array<uint64_t, 4> items_{};  // By Outcome.
    obs::RootSpan root_;
  };

  // Brings up to date what is derived from the rest; before the metrics are read.
  void Refresh();

 private:
  enum Outcome : uint8_t { kOk, kMiss, kConflict, kError };
  static constexpr size_t kOutcomes = 4;
  static constexpr size_t kReasons = 19;

  // A call touches as little as it can: the number of calls is that of the observations of
  // `duration`, and Refresh derives the rest. What is null was never needed.
  struct Handles {
    std::atomic<Histogram*> duration{};
    std::atomic<Counter*> bytes_in{};
    std::atomic<Counter*> bytes_out{};
    // Items beyond one for each call, modulo 2^64: a call may have none.
    std::atomic<uint64_t> more_items{0};
  };
  struct Series {
    Counter* started = nullptr;
    std::array<Handles, kOutcomes> results;
    std::array<std::atomic<Counter*>, kReasons> reasons{};
  };

  static Outcome OutcomeOf(ErrorCode code);
  Counter& Count(std::atomic<Counter*>& handle, const char* name, Operation operation,
                 const char* label, std::string_view value);
  void NoteReason(const Call& call, ErrorCode code, ErrorReason reason);
  void Note(const Call& call, uint64_t ns);
  void Trace(const Call& call, Outcome outcome, uint64_t ns);
  Histogram& DurationOf(Operation operation, Outcome outcome);
  // Adds what `source` has more than the counter.
  void CatchUp(const char* name, const Labels& labels, uint64_t source);
  void RefreshOperation(Operation operation);
  // The calls that ended so.
  uint64_t RefreshResult(Operation operation, size_t outcome);

  Metrics& metrics_;
  obs::Tracer& tracer_;
  const uint64_t limit_ms_;
  const std::string tenant_;
  std::array<Series, kOperations> series_;
  base::Mutex refresh_mu_;
};

}  // namespace mooncake::client

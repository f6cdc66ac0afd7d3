// What the machine can do without a store: a bare TCP connection over the loopback, and memcpy,
// with the same sizes and as many threads, in the same run.
#pragma once

#include <cstdint>

#include "bench/samples.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

namespace mooncake::bench {

struct Limit {
  Samples samples;
  uint64_t bytes = 0;
  uint64_t wall_ns = 0;

  double GibPerS() const;
  void Merge(const Limit& other);
};

struct LimitRequest {
  uint64_t bytes = 0;  // Of one call.
  uint32_t threads = 1;
  uint64_t budget_ms = 100;
};

enum class RawKind : uint8_t { kGet, kPut };

Result<Limit> MeasureTcp(Runtime& runtime, uint16_t port, RawKind kind, LimitRequest request);
// Copies from a region that is larger than the cache.
Result<Limit> MeasureMemcpy(Runtime& runtime, LimitRequest request);

}  // namespace mooncake::bench

// What a run says at its end: as text for people, as JSON or CSV for programs. The names are part
// of the interface.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bench/limits.h"
#include "bench/options.h"
#include "bench/verify.h"
#include "bench/workload.h"

namespace mooncake::bench {

// The machine's own speed, and which of it the run is held against.
struct Limits {
  Limit tcp_round_trip;  // 64 bytes.
  Limit tcp_get;         // The bytes of one call.
  Limit tcp_put;
  Limit copy;

  void Merge(const Limits& other);
};

std::string BenchReport(const Options& options, const Outcome& outcome, const Limits& limits);
std::string VerifyReport(const Options& options, const Verified& verified);

}  // namespace mooncake::bench

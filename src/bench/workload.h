// Runs the calls of a benchmark on several threads and counts what came of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "bench/cluster.h"
#include "bench/options.h"
#include "bench/samples.h"

namespace mooncake::bench {

// Set from outside (a signal): the threads end after their current call.
extern std::atomic<int> stop_signal;

struct Outcome {
  Samples samples;
  uint64_t ops = 0;     // Calls.
  uint64_t items = 0;   // Keys in them.
  uint64_t errors = 0;  // Items that failed; a miss is one, as every key was put.
  uint64_t bytes = 0;   // Of the values that were moved.
  double seconds = 0;

  void Merge(const Outcome& other);
};

// Puts every key once, so that reads find something. Returns the number of keys that fit.
Result<uint64_t> Preload(Runtime& runtime, Cluster& cluster, const Options& options, uint64_t run);

Result<Outcome> RunWorkload(Runtime& runtime, Cluster& cluster, const Options& options,
                            uint64_t run);

}  // namespace mooncake::bench

// Writes, overwrites and removes keys through one client, reads them through another, and
// compares every byte: a read returns exactly one value that was put and not yet replaced, or a
// miss. Each key belongs to one thread, so what a read may return is known.
#pragma once

#include <cstdint>
#include <string>

#include "bench/cluster.h"
#include "bench/options.h"
#include "bench/samples.h"

namespace mooncake::bench {

struct Verified {
  Samples samples;        // Of reads.
  uint64_t ops = 0;       // Calls.
  uint64_t verified = 0;  // Reads that were right: the bytes of the last put, or a miss where
                          // nothing was.
  uint64_t wrong = 0;     // Wrong bytes, an older value, or a value that was removed.
  uint64_t misses = 0;    // Values that are gone: evicted, or their owner died. No fault.
  uint64_t errors = 0;    // Calls that failed and said so.
  uint64_t bytes = 0;     // That were compared.
  double seconds = 0;
  std::string first_wrong;

  void Merge(const Verified& other);
};

// One pass over the keys at least; until the duration is over if there is one.
Result<Verified> RunVerify(Runtime& runtime, Cluster& cluster, const Options& options,
                           uint64_t run);

}  // namespace mooncake::bench

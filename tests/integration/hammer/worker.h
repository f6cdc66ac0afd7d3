// The worker of the hammer: a process with one store that does what it is told, line by line,
// on a pair of pipes, and says how it went.
#pragma once

#include <cstdint>
#include <string>

namespace mooncake::hammer {

inline constexpr int kCommandFd = 3;
inline constexpr int kReportFd = 4;
// Under a sanitizer, eight processes on few cores stand still for seconds.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kSlowness = 5;
#else
inline constexpr uint64_t kSlowness = 1;
#endif
inline constexpr uint64_t kLeaseMs = 3'000 * kSlowness;
inline constexpr uint64_t kRequestTimeoutMs = 10'000 * kSlowness;
inline constexpr uint64_t kStallTimeoutMs = 2'000 * kSlowness;

// Commands, each answered by one line:
//   run MS       hammers for that long; "PUTS FAILED GETS ERRORS WRONG WORST_MS FIRST_ERROR"
//   keep COUNT   puts the kept keys; "FAILED"
//   check COUNT  reads the kept keys; a letter for each: + right, - missed, ! wrong, ? an error
//   owners COUNT the owner of each kept key, in order
//   used         bytes used in the own segment
//   live         bytes that the routes of all keys account for
//   quit
// The first line, unasked, is the node's name. Returns the exit status.
int RunWorker(const std::string& metadata_url, uint64_t segment_bytes, int threads, uint64_t seed);

}  // namespace mooncake::hammer

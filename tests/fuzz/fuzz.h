// The driver: feeds one parser with inputs that a seed decides, and checks each time.
//
//   RunTarget({.samples = {"a:1", "[::1]:2"}, .check = [](const std::string& input) {
//     const auto parsed = base::ParseHostPort("field", input);
//     if (!parsed) return WrongError(parsed.error(), ErrorCode::kInvalidArgument, "field");
//     MC_FUZZ_CHECK(base::ParseHostPort("field", parsed->ToString()).ok());
//     return kRight;
//   }});
//
// Besides what `check` says, an input fails the test when the parser throws, crashes, takes longer
// than kInputSecondsMax, or allocates far more than the input is long. A failure prints the input
// and the seed that makes it again.
//
//   MC_FUZZ_ROUNDS=100000   inputs of each target instead of kRoundsDefault (of costly ones fewer)
//   MC_FUZZ_FIRST=5000      other ones: the seeds from 5000 on
//   MC_FUZZ_SEED=5017       this one alone, once more
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/mutate.h"
#include "mooncake/result.h"

namespace mooncake::fuzz {

inline constexpr uint64_t kRoundsDefault = 10'000;
inline constexpr unsigned kInputSecondsMax = 60;  // Against loops without an end, not slowness.

inline const std::string kRight;

struct Target {
  std::vector<std::string> samples;  // Good ones, of our own making. Each is tried as it is, too.
  Format format = Format::kText;
  // kRight, or what is wrong.
  std::function<std::string(const std::string& input)> check;
  // Of its own, for formats that changes of bytes would not get deep into. Empty: InputFrom.
  std::function<std::string(Random& random)> make = {};
  // What `check` may allocate, all together: so much, and so much for each byte of the input.
  uint64_t allocated_bytes_max = 1 << 20;
  uint64_t allocated_per_byte_max = 64;
  uint64_t cost = 1;  // So many times fewer rounds.
};

// A test of its own for each target. Ends at the first input that fails.
void RunTarget(const Target& target);

// kRight where the error is of this code and its text has `named` in it.
std::string WrongError(const Error& error, ErrorCode code, std::string_view named);

// What is between `://user:` and the last `@` of a URL is a password, whatever is in it: whether
// `text`, which is shown to people, has this one of the input's.
inline constexpr std::string_view kPassword = "hunter2secret";
bool Leaks(const std::string& input, const std::string& text);

#define MC_FUZZ_STRING_(text) #text
#define MC_FUZZ_LINE_(line) MC_FUZZ_STRING_(line)
// In a check: ends it unless this holds.
#define MC_FUZZ_CHECK(...)                                                                  \
  do {                                                                                      \
    if (!(__VA_ARGS__))                                                                     \
      return std::string(__FILE__ ":" MC_FUZZ_LINE_(__LINE__) ": not true: " #__VA_ARGS__); \
  } while (false)

}  // namespace mooncake::fuzz

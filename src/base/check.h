// MC_CHECK: a bug is not an error. Stops the process, in release builds too, with the text of
// the condition; never used for anything that a caller, peer, client or file can cause.
#pragma once

namespace mooncake::base {
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);
}  // namespace mooncake::base

#define MC_CHECK(condition)                                          \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::mooncake::base::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)

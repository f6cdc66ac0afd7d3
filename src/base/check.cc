#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace mooncake::base {

void CheckFailed(const char* condition, const char* file, int line) {
  // No allocation and no logger: the process may be in any state.
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::fflush(stderr);
  std::abort();
}

}  // namespace mooncake::base

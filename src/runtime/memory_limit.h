// The limits that the kernel sets to the memory of this process's control groups, a container's for
// example. Whoever exceeds one is killed when the memory is touched, far from where it was asked
// for; so it is looked up where memory is asked for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mooncake/result.h"

namespace mooncake {

struct MemoryLimit {
  std::string file;    // Where it is set.
  uint64_t bytes = 0;  // Of all processes of the group.
  uint64_t used = 0;   // By them, without what the kernel gives up at once.
};

// Of the process's group and of those around it, as far as they are visible and limited at all;
// control groups of both versions. `process`: its folder in /proc. Costs some 0.1 ms.
std::vector<MemoryLimit> MemoryLimits(const std::string& process = "/proc/self");

// kNoSpace, with the limit and where it is set, if `size` bytes exceed one of the limits; kNow: if
// they do on top of what is used.
enum class LimitCheck : uint8_t { kEver, kNow };
Status CheckMemoryLimits(uint64_t size, LimitCheck check, const std::vector<MemoryLimit>& limits);

}  // namespace mooncake

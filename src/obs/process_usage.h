// What this process uses of the machine, from /proc.
#pragma once

#include <cstdint>

namespace mooncake::obs {

struct ProcessUsage {
  double cpu_seconds = 0;  // User and system.
  uint64_t resident_bytes = 0;
  uint64_t open_fds = 0;
  uint64_t threads = 0;
};

// What cannot be read is 0.
ProcessUsage ReadProcessUsage();

}  // namespace mooncake::obs

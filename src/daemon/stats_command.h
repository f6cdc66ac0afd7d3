// `stats`: asks a node's metrics server and prints what it says.
#pragma once

#include "daemon/flags.h"

namespace mooncake::daemon {

// Prints to stdout; returns the exit code.
int RunStats(const StatsOptions& options);

}  // namespace mooncake::daemon

// `stats`: asks a node's metrics server and prints what it says.
#pragma once

#include <string>

#include "daemon/flags.h"

namespace mooncake::daemon {

// The body of an HTTP answer of status 200. kTransport, with `from` and the first line: what came
// is none, or of another status.
Result<std::string> BodyOf(const std::string& from, const std::string& answer);

// Prints to stdout; returns the exit code.
int RunStats(const StatsOptions& options);

}  // namespace mooncake::daemon

// The daemon's command line. Every setting of the table in client/config is a flag; a few more
// concern only the daemon. A flag wins over the environment, that over the --config file, that
// over the default.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "daemon/daemon.h"

namespace mooncake::daemon {

inline constexpr const char* kProgram = "mooncake-store-rs-client";

enum class Action { kHelp, kVersion, kPrintConfig, kRun, kStats };

struct StatsOptions {
  std::string server;  // host:port of a metrics server.
  bool json = false;
  bool breakdown = false;
};

struct CommandLine {
  Action action = Action::kHelp;
  DaemonConfig daemon;         // kRun
  StatsOptions stats;          // kStats
  std::string text;            // What to print: kHelp, kVersion, kPrintConfig.
  bool asked_for_help = true;  // False: nothing was asked for at all.
};

// `arguments` without the program's name. kInvalidArgument: names the flag, the value and what is
// allowed.
Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                     const std::map<std::string, std::string>& environment);

// The variables of this process.
std::map<std::string, std::string> ProcessEnvironment();

}  // namespace mooncake::daemon

#include "daemon/flags.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "base/url.h"
#include "client/config/config_parse.h"
#include "client/config/config_table.h"

namespace mooncake::daemon {

namespace {

using client_config::FindSetting;
using client_config::FlagOf;
using client_config::NotAllowed;
using client_config::Setting;
using client_config::Settings;
using client_config::Split;
using client_config::Trim;
using Texts = std::map<std::string, std::string>;

struct DaemonSetting {
  const char* name;
  const char* environment;
  bool boolean;
  const char* initial;
  const char* help;
};

#define MC_ENV "MC_STORE_RS_"
constexpr DaemonSetting kDaemonSettings[] = {
    {"client_server_address", MC_ENV "CLIENT_SERVER_ADDRESS", false, "",
     "host:port where dummy clients of this host connect. Absent: none are served."},
    {"socket_dir", MC_ENV "SOCKET_DIR", false, "",
     "The folder of the Unix socket, mode 0700. Absent: one of this user's."},
    {"drain_on_exit", MC_ENV "DRAIN_ON_EXIT", true, "false",
     "Hand the stored values over before ending."},
    {"drain_timeout_ms", MC_ENV "DRAIN_TIMEOUT_MS", false, "30000", "The limit of that."},
};
#undef MC_ENV

// A daemon without a word about it stores something, unlike a store inside an application.
constexpr std::pair<std::string_view, std::string_view> kOtherDefaults[] = {
    {"global_segment_size", "64MB"}, {"local_buffer_size", "4MB"}};

std::string_view InitialOf(const Setting& setting) {
  for (const auto& [name, initial] : kOtherDefaults) {
    if (name == setting.name) return initial;
  }
  return setting.initial;
}

const DaemonSetting* FindDaemonSetting(std::string_view name) {
  for (const DaemonSetting& setting : kDaemonSettings) {
    if (setting.name == name) return &setting;
  }
  return nullptr;
}

constexpr const char* kUsage =
    "usage: {0} [run] [--FLAG VALUE | --FLAG=VALUE | --BOOLEAN]...\n"
    "       {0} stats --server HOST:PORT [--json] [--breakdown]\n"
    "       {0} --help | --version\n"
    "\n"
    "A node of the store in a process of its own. Applications of the same host use it through\n"
    "setup_dummy(...) when --client-server-address is given.\n"
    "\n"
    "Exit codes: 0 stopped cleanly, 1 failed, 2 wrong arguments, 3 not everything was handed "
    "over;\n"
    "a second signal ends the process at once with 128 plus its number.\n"
    "\n"
    "  --config FILE    lines of NAME = VALUE, below flags and environment\n"
    "  --print-config   show the settings and where each comes from\n";

void AppendFlag(std::string& text, std::string_view names, std::string_view environment,
                std::string_view initial, std::string_view help) {
  text += "  ";
  for (std::string_view name : Split(names, ' ')) {
    text += fmt::format("{}{}", text.ends_with("  ") ? "" : ", ", FlagOf(name));
  }
  if (!initial.empty()) text += fmt::format(" (default {})", initial);
  text += fmt::format("\n      {}\n", help);
  if (!environment.empty()) text += fmt::format("      environment: {}\n", environment);
}

std::string HelpText() {
  std::string text = fmt::format(fmt::runtime(kUsage), kProgram);
  for (const DaemonSetting& setting : kDaemonSettings) {
    AppendFlag(text, setting.name, setting.environment, setting.initial, setting.help);
  }
  for (const Setting& setting : Settings()) {
    AppendFlag(text, fmt::format("{} {}", setting.name, setting.aliases), setting.environment,
               InitialOf(setting), setting.help);
  }
  return text;
}

// What the flags say, by setting: the own name of it, whatever the spelling.
class Flags {
 public:
  Result<std::string> Add(const std::vector<std::string>& arguments, size_t* at) {
    const std::string& argument = arguments[*at];
    if (!argument.starts_with("--") || argument.size() == 2) {
      return InvalidArgument(fmt::format("{}: unexpected argument; see --help", argument));
    }
    const size_t equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const Setting* setting = FindSetting(name);
    const DaemonSetting* own = FindDaemonSetting(name);
    if (setting == nullptr && own == nullptr) return Unknown(name);
    const bool boolean = own != nullptr ? own->boolean : setting->type == "boolean";
    std::string value;
    if (equals != std::string::npos) {
      value = argument.substr(equals + 1);
    } else if (const bool more = *at + 1 < arguments.size();
               more && (!boolean || IsBool(arguments[*at + 1]))) {
      value = arguments[++*at];
    } else if (boolean) {
      value = "true";
    } else {
      return InvalidArgument(fmt::format("{} needs a value", argument));
    }
    const std::string known = own != nullptr ? own->name : std::string(setting->name);
    std::string& text = values[known];
    // Labels may be given one by one.
    const bool joined = known == "labels" && !text.empty();
    text = joined ? text + "," + value : value;
    return known;
  }

  Texts values;

 private:
  static bool IsBool(const std::string& text) {
    return client_config::ParseBool("flag", text).ok();
  }
  static Error Unknown(const std::string& name) {
    std::string message = fmt::format("there is no flag {}", FlagOf(name));
    if (name.starts_with("cold_tier"))
      return InvalidArgument(message + ": cold tiers are not supported");
    if (name.starts_with("tls_")) {
      return InvalidArgument(message +
                             ": TLS is not supported; the cluster secret authenticates "
                             "clients, and their socket is private to the user");
    }
    const std::string nearest = NearestConfigName(name);
    if (!nearest.empty()) message += fmt::format("; did you mean {}?", FlagOf(nearest));
    return InvalidArgument(message);
  }
};

bool AnySet(std::string_view variables, const Texts& environment) {
  for (std::string_view variable : Split(variables, ' ')) {
    const auto found = environment.find(std::string(variable));
    if (found != environment.end() && !Trim(found->second).empty()) return true;
  }
  return false;
}

std::string_view VariablesOf(const std::string& name) {
  if (const DaemonSetting* own = FindDaemonSetting(name)) return own->environment;
  return FindSetting(name)->environment;
}

// Adds what the file says about settings that neither a flag nor the environment gives.
Status AddFile(const std::string& path, const Texts& environment, Texts* values) {
  std::ifstream file(path);
  if (!file) return InvalidArgument(fmt::format("--config {}: cannot be read", path));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const std::string_view text = Trim(line);
    if (text.empty() || text.front() == '#') continue;
    const size_t equals = text.find('=');
    std::string name(Trim(text.substr(0, equals)));
    std::replace(name.begin(), name.end(), '-', '_');
    const Setting* setting = FindSetting(name);
    if (setting != nullptr) name = setting->name;
    if (equals == std::string_view::npos ||
        (setting == nullptr && FindDaemonSetting(name) == nullptr)) {
      return InvalidArgument(
          fmt::format("--config {}, line {}: expected NAME = VALUE with a "
                      "setting's name, got \"{}\"",
                      path, number, text));
    }
    if (values->contains(name) || AnySet(VariablesOf(name), environment)) continue;
    (*values)[name] = Trim(text.substr(equals + 1));
  }
  // A folder can be opened, and fails here.
  if (file.bad()) return InvalidArgument(fmt::format("--config {}: cannot be read", path));
  return Ok();
}

std::string TextOf(const std::string& name, const Texts& values, const Texts& environment,
                   std::string_view initial, const char** source) {
  if (const auto found = values.find(name); found != values.end()) {
    *source = "given";
    return found->second;
  }
  for (std::string_view variable : Split(VariablesOf(name), ' ')) {
    const auto found = environment.find(std::string(variable));
    if (found == environment.end() || Trim(found->second).empty()) continue;
    *source = "environment";
    return found->second;
  }
  *source = "default";
  return std::string(initial);
}

std::string ConfigText(const Texts& values, const Texts& environment) {
  std::string text;
  const auto add = [&](const std::string& name, std::string_view initial, bool secret, bool url) {
    const char* source = "";
    std::string value = TextOf(name, values, environment, initial, &source);
    if (secret && !value.empty()) value = "***";
    if (url) value = base::RedactUrl(value);
    text += fmt::format("{} = {}  # {}\n", name, value, source);
  };
  for (const DaemonSetting& setting : kDaemonSettings) {
    add(setting.name, setting.initial, false, false);
  }
  for (const Setting& setting : Settings()) {
    add(std::string(setting.name), InitialOf(setting),
        setting.type == "secret" || setting.name == "metadata_url",
        client_config::Lower(setting.type) == "url");
  }
  return text;
}

std::string DefaultSocketFolder(const Texts& environment) {
  const auto runtime = environment.find("XDG_RUNTIME_DIR");
  if (runtime != environment.end() && !runtime->second.empty()) {
    return runtime->second + "/mooncake-store";
  }
  return fmt::format("/tmp/mooncake-store-{}", geteuid());
}

// The settings of the daemon alone, taken out of `values`.
Status TakeDaemonSettings(const Texts& environment, Texts* values, DaemonConfig* config) {
  Texts own;
  for (const DaemonSetting& setting : kDaemonSettings) {
    const char* source = "";
    own[setting.name] = Trim(TextOf(setting.name, *values, environment, setting.initial, &source));
    values->erase(setting.name);
  }
  config->client_server_address = own["client_server_address"];
  config->socket_folder = own["socket_dir"];
  if (config->socket_folder.empty()) config->socket_folder = DefaultSocketFolder(environment);
  MC_TRY(const bool drain, client_config::ParseBool("--drain-on-exit", own["drain_on_exit"]));
  MC_TRY(config->drain_timeout_ms,
         client_config::ParseInteger("--drain-timeout-ms", own["drain_timeout_ms"], 1, 86'400'000));
  config->drain_on_exit = drain;
  return Ok();
}

Result<CommandLine> ParseRun(const std::vector<std::string>& arguments, const Texts& environment) {
  CommandLine command;
  command.action = Action::kRun;
  Flags flags;
  std::string file;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--print-config") {
      command.action = Action::kPrintConfig;
    } else if (argument == "--config" && at + 1 < arguments.size()) {
      file = arguments[++at];
    } else if (argument.starts_with("--config=")) {
      file = argument.substr(9);
    } else if (argument == "--help" || argument == "-h") {
      command.action = Action::kHelp;
      command.text = HelpText();
      return command;
    } else {
      MC_TRY(const std::string added, flags.Add(arguments, &at));
      (void)added;
    }
  }
  if (!file.empty()) MC_RETURN_IF_ERROR(AddFile(file, environment, &flags.values));
  command.text = ConfigText(flags.values, environment);
  for (const auto& [name, initial] : kOtherDefaults) {
    if (AnySet(VariablesOf(std::string(name)), environment)) continue;
    flags.values.try_emplace(std::string(name), initial);
  }
  DaemonConfig& config = command.daemon;
  MC_RETURN_IF_ERROR(TakeDaemonSettings(environment, &flags.values, &config));
  MC_TRY(config.store, ConfigFromValues(flags.values, environment));
  if (!config.store.trace.filter.empty()) {
    config.log_level = client_config::Lower(config.store.trace.filter);
  }
  config.keyspace_given =
      flags.values.contains("keyspace") || AnySet(VariablesOf("keyspace"), environment);
  if (config.store.local_buffer_size == 0) {
    return NotAllowed("scratch_bytes", "0", "more than 0: values pass through it");
  }
  return command;
}

Result<CommandLine> ParseStats(const std::vector<std::string>& arguments,
                               const Texts& environment) {
  CommandLine command;
  command.action = Action::kStats;
  const auto variable = [&](const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string() : found->second;
  };
  command.stats.server = variable("MC_STORE_RS_STATS_SERVER");
  if (const std::string json = variable("MC_STORE_RS_STATS_JSON"); !json.empty()) {
    MC_TRY(command.stats.json, client_config::ParseBool("MC_STORE_RS_STATS_JSON", json));
  }
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--json") {
      command.stats.json = true;
    } else if (argument == "--breakdown") {
      command.stats.breakdown = true;
    } else if (argument == "--server" && at + 1 < arguments.size()) {
      command.stats.server = arguments[++at];
    } else if (argument.starts_with("--server=")) {
      command.stats.server = argument.substr(9);
    } else {
      return InvalidArgument(fmt::format(
          "stats: unexpected argument {}; allowed: --server HOST:PORT --json --breakdown",
          argument));
    }
  }
  if (command.stats.server.empty()) {
    return InvalidArgument("stats: --server HOST:PORT is required");
  }
  return command;
}

}  // namespace

Result<CommandLine> ParseCommandLine(const std::vector<std::string>& arguments,
                                     const Texts& environment) {
  CommandLine command;
  command.text = HelpText();
  command.asked_for_help = !arguments.empty();
  if (arguments.empty()) return command;
  const std::string& first = arguments[0];
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  if (first == "help" || first == "-h" || first == "--help") return command;
  if (first == "-V" || first == "--version") {
    command.action = Action::kVersion;
    command.text = fmt::format("{} {}\n", kProgram, MOONCAKE_VERSION);
    return command;
  }
  if (first == "stats") return ParseStats(rest, environment);
  return ParseRun(first == "run" ? rest : arguments, environment);
}

Texts ProcessEnvironment() {
  Texts environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

}  // namespace mooncake::daemon

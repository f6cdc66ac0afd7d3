// The one table of settings. Python keywords, dict keys, daemon flags, environment variables and
// docs/configuration.md all come from it, so that none can know more than the others.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "mooncake/config.h"

namespace mooncake::client_config {

// A text to be put into a configuration, and what the user called it.
struct Given {
  std::string_view field;
  std::string_view text;
};

// What metadata_url may be, for messages and the documentation.
inline constexpr std::string_view kMetadataUrlForms =
    "memory://NAME, sqlite:///absolute/path.db, redis://[user:pass@]host:port/db, "
    "rediss://[user:pass@]host:port/db, etcd://host:port[,host:port]";

struct Setting {
  std::string_view name;         // As in setup(); the flag is --name with hyphens.
  std::string_view aliases;      // Other names, spaces between, best first.
  std::string_view environment;  // Variables, spaces between, best first.
  std::string_view type;
  std::string_view initial;  // The default as text; empty: what `help` says.
  std::string_view allowed;
  std::string_view help;
  Status (*apply)(const Given& given, StoreConfig& config);
};

std::span<const Setting> Settings();

// By name or alias; nullptr: no such setting.
const Setting* FindSetting(std::string_view name);

// "--lease-ttl-ms" for "lease_ttl_ms".
std::string FlagOf(std::string_view name);

}  // namespace mooncake::client_config

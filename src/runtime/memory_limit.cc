#include "runtime/memory_limit.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>

namespace mooncake {

namespace {

constexpr size_t kLevelsMax = 64;            // Of groups inside groups.
constexpr uint64_t kUnlimited = 1ULL << 62;  // Version 1 writes "none" as such a number.

// The names of one version of control groups.
struct Version {
  std::string_view filesystem;
  std::string_view limit;
  std::string_view used;
  std::string_view spare;  // In memory.stat.
};
constexpr Version kVersions[] = {
    {"cgroup", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"},
    {"cgroup2", "memory.max", "memory.current", "inactive_file"},
};

std::vector<std::string> Words(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

bool Lists(const std::string& options, std::string_view option) {
  std::istringstream stream(options);
  for (std::string one; std::getline(stream, one, ',');) {
    if (one == option) return true;
  }
  return false;
}

// None: no such file, or no number ("max").
std::optional<uint64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

uint64_t StatOf(const std::string& folder, std::string_view wanted) {
  std::ifstream file(folder + "/memory.stat");
  std::string name;
  for (uint64_t number = 0; file >> name >> number;) {
    if (name == wanted) return number;
  }
  return 0;
}

// The process's group in the hierarchy that `version` mounts, from the root of that hierarchy.
std::optional<std::string> GroupOf(const std::string& process, const Version& version) {
  std::ifstream file(process + "/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool right =
        version.filesystem == "cgroup2" ? controllers.empty() : Lists(controllers, "memory");
    if (right) return line.substr(second + 1);
  }
  return std::nullopt;
}

struct Mount {
  std::string root;  // What of the hierarchy is mounted.
  std::string point;
};

std::optional<Mount> MountOf(const std::string& process, const Version& version) {
  std::ifstream file(process + "/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = Words(line);
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 6 || words.end() - dash < 4 || dash[1] != version.filesystem) continue;
    if (version.filesystem == "cgroup" && !Lists(dash[3], "memory")) continue;
    return Mount{words[3], words[4]};
  }
  return std::nullopt;
}

void AddLimits(const std::string& process, const Version& version,
               std::vector<MemoryLimit>* limits) {
  const std::optional<std::string> group = GroupOf(process, version);
  const std::optional<Mount> mount = MountOf(process, version);
  if (!group || !mount) return;
  // In a container the mount may begin at its group, or at none that the process's name tells of.
  std::string below = *group;
  if (mount->root != "/") {
    const bool inside = (below + '/').starts_with(mount->root + '/');
    below = inside ? below.substr(mount->root.size()) : "";
  }
  for (size_t level = 0; level < kLevelsMax; ++level) {
    const std::string folder = mount->point + (below == "/" ? "" : below);
    const std::string path = fmt::format("{}/{}", folder, version.limit);
    if (const auto limit = NumberIn(path); limit && *limit < kUnlimited) {
      const uint64_t used = NumberIn(fmt::format("{}/{}", folder, version.used)).value_or(0);
      const uint64_t spare = StatOf(folder, version.spare);
      limits->push_back({path, *limit, used - std::min(used, spare)});
    }
    const size_t slash = below.rfind('/');
    if (slash == std::string::npos) return;
    below.resize(slash);
  }
}

}  // namespace

std::vector<MemoryLimit> MemoryLimits(const std::string& process) {
  std::vector<MemoryLimit> limits;
  for (const Version& version : kVersions) AddLimits(process, version, &limits);
  return limits;
}

Status CheckMemoryLimits(uint64_t size, LimitCheck check, const std::vector<MemoryLimit>& limits) {
  for (const MemoryLimit& limit : limits) {
    const uint64_t used = check == LimitCheck::kNow ? std::min(limit.used, limit.bytes) : 0;
    if (size <= limit.bytes - used) continue;
    return NoSpace(
        fmt::format("{} bytes are more than the memory limit of {} bytes{} in {} allows; "
                    "raise it, or ask for less",
                    size, limit.bytes, used > 0 ? fmt::format(", of which {} are used,", used) : "",
                    limit.file));
  }
  return Ok();
}

}  // namespace mooncake

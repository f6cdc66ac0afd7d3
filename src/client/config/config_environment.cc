// Variables that no setting reads: they are for a dummy client, or for parts that another
// implementation of this store has and this one has not.
#include "client/config/config_parse.h"
#include "client/config/config_table.h"
#include "obs/log.h"

namespace mooncake::client_config {
namespace {

// Connections, their number and their threads follow from the calls; there is no RDMA and no cold
// tier; a command that failed is repeated by whoever needs its result.
constexpr std::string_view kUnused[] = {
    "MC_STORE_RS_COLD_TIER_TARGETS",
    "MC_STORE_RS_CONTROL_PLANE_SERVER_THREADS",
    "MC_STORE_RS_CONTROL_PLANE_THREADS",
    "MC_STORE_RS_CONTROL_REQUEST_TIMEOUT_MS",
    "MC_STORE_RS_GID_INDEX",
    "MC_GID_INDEX",
    "MC_STORE_RS_REDIS_AUTH_PROBE_TIMEOUT_MS",
    "MC_STORE_RS_REDIS_CONNECTION_POOL_SIZE",
    "MC_STORE_RS_REDIS_RETRY_ATTEMPTS",
    "MC_STORE_RS_REDIS_RETRY_DELAY_MS",
};

constexpr uint64_t kRpcTimeoutMax = 86'400'000;

std::string_view TextOf(const std::map<std::string, std::string>& environment,
                        std::string_view name) {
  const auto found = environment.find(std::string(name));
  return found == environment.end() ? std::string_view() : Trim(found->second);
}

}  // namespace

Status CheckEnvironment(const std::map<std::string, std::string>& environment) {
  constexpr std::string_view kRpcTimeout = "MC_STORE_RS_DUMMY_RPC_TIMEOUT_MS";
  if (const auto text = TextOf(environment, kRpcTimeout); !text.empty()) {
    MC_RETURN_IF_ERROR(ParseInteger(kRpcTimeout, text, 1, kRpcTimeoutMax));
  }
  // Nothing to switch off: values between nodes go through sockets, also on one host.
  constexpr std::string_view kNoSharing = "MC_STORE_RS_DISABLE_SHM";
  if (const auto text = TextOf(environment, kNoSharing); !text.empty()) {
    MC_RETURN_IF_ERROR(ParseBool(kNoSharing, text));
  }
  std::string unused;
  for (std::string_view name : kUnused) {
    if (TextOf(environment, name).empty()) continue;
    unused.append(unused.empty() ? "" : ", ").append(name);
  }
  if (!unused.empty()) {
    obs::LogWarning(unused + ": set, but this store has nothing that it would change");
  }
  return Ok();
}

}  // namespace mooncake::client_config

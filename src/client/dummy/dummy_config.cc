#include "base/hostport.h"
#include "client/config/config_parse.h"
#include "mooncake/dummy.h"

namespace mooncake {

namespace {

using client_config::NotAllowed;
using client_config::Trim;
using Texts = std::map<std::string, std::string>;

std::string TextOf(const Texts& texts, const char* name) {
  const auto found = texts.find(name);
  return found == texts.end() ? std::string() : found->second;
}

Result<std::string> SecretOf(const Texts& environment) {
  std::string secret = TextOf(environment, "MC_STORE_RS_CLUSTER_SECRET");
  const std::string path = TextOf(environment, "MC_STORE_RS_CLUSTER_SECRET_FILE");
  if (!secret.empty() || path.empty()) return secret;
  return client_config::ReadSecret("MC_STORE_RS_CLUSTER_SECRET_FILE", path, "secret");
}

}  // namespace

Result<DummyConfig> DummyConfigFromValues(const Texts& values, const Texts& environment) {
  constexpr const char* kTimeout = "MC_STORE_RS_DUMMY_RPC_TIMEOUT_MS";
  constexpr uint64_t kTimeoutMax = 86'400'000;
  MC_RETURN_IF_ERROR(client_config::CheckNoTls(environment));
  DummyConfig config;
  config.server_address = Trim(TextOf(values, "server_address"));
  const auto address = base::ParseHostPort("server_address", config.server_address);
  if (!address || address->host.empty() || !address->port || *address->port == 0) {
    return NotAllowed("server_address", config.server_address, "host:port or [v6]:port");
  }
  config.keyspace = Trim(TextOf(values, "keyspace"));
  if (config.keyspace.empty()) config.keyspace = Trim(TextOf(environment, "MC_STORE_RS_KEYSPACE"));
  config.worker_scope = Trim(TextOf(values, "worker_scope"));
  MC_TRY(config.cluster_secret, SecretOf(environment));
  for (const char* name : {"MC_STORE_RS_REQUEST_TIMEOUT_MS", kTimeout}) {
    const std::string text = TextOf(environment, name);
    if (text.empty()) continue;
    MC_TRY(config.rpc_timeout_ms, client_config::ParseInteger(name, text, 1, kTimeoutMax));
  }
  return config;
}

}  // namespace mooncake

// etcd://[user:password@]host:port[,host:port...][/prefix][?tls=true&tls_ca=FILE...], with
// percent-decoded credentials. Any tls_ parameter (net/tls_query.h) asks for TLS too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/net/tls.h"
#include "mooncake/result.h"

namespace mooncake::metadata {

struct EtcdEndpoint {
  std::string host;
  uint16_t port = 2379;

  std::string ToString() const;  // "etcd://host:port": the form for every message.
};

struct EtcdAddress {
  std::vector<EtcdEndpoint> endpoints;  // At least one.
  std::string prefix;                   // "" or "/a/b".
  std::string username;
  std::string password;
  std::optional<TlsOptions> tls;
};

// kInvalidArgument: malformed, without the URL's credentials in the message, or a file for TLS
// that cannot be used.
Result<EtcdAddress> ParseEtcdUrl(std::string_view url);

}  // namespace mooncake::metadata

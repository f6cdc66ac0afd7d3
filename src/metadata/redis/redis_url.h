// redis://[[user]:password@]host[:port][/db], with percent-decoded credentials; rediss:// is the
// same with TLS, and takes tls_ca and the like behind a question mark (net/tls_query.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "metadata/net/tls.h"
#include "mooncake/result.h"

namespace mooncake::metadata {

struct RedisAddress {
  std::string host;
  uint16_t port = 6379;
  uint32_t db = 0;
  std::string username;
  std::string password;
  std::optional<TlsOptions> tls;

  // "redis://host:port/db" or "rediss://...", never with credentials: the form for every message.
  std::string ToString() const;
};

// kInvalidArgument: malformed, without the URL's credentials in the message, or a file for
// TLS that cannot be used.
Result<RedisAddress> ParseRedisUrl(std::string_view url);

}  // namespace mooncake::metadata

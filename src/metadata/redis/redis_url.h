// redis://[[user]:password@]host[:port][/db], with percent-decoded credentials.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mooncake/result.h"

namespace mooncake::metadata {

struct RedisAddress {
  std::string host;
  uint16_t port = 6379;
  uint32_t db = 0;
  std::string username;
  std::string password;

  // "redis://host:port/db", never with credentials: the form for every message.
  std::string ToString() const;
};

// kInvalidArgument: malformed, without the URL's credentials in the message. kUnsupported:
// rediss://, as this build's client has no TLS.
Result<RedisAddress> ParseRedisUrl(std::string_view url);

}  // namespace mooncake::metadata

// Addresses as people write them: host, host:port, [v6]:port, [v6].
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mooncake/result.h"

namespace mooncake::base {

struct HostPort {
  std::string host;  // Without brackets.
  std::optional<uint16_t> port;

  std::string ToString() const;  // In the form that ParseHostPort reads.
  bool operator==(const HostPort&) const = default;
};

// Text with more than one colon and no brackets is a host without a port (an IPv6 address).
// kInvalidArgument names `field` and `text`.
Result<HostPort> ParseHostPort(std::string_view field, std::string_view text);

// "host:port", with brackets where the host needs them.
std::string JoinHostPort(std::string_view host, uint16_t port);

}  // namespace mooncake::base

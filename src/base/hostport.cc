#include "base/hostport.h"

#include <algorithm>

#include "base/text.h"

namespace mooncake::base {
namespace {

Error Bad(std::string_view field, std::string_view text, std::string_view why) {
  return InvalidArgument(
      StrCat(field, ": \"", text, "\" ", why, "; allowed: host, host:port, [ipv6] or [ipv6]:port"));
}

}  // namespace

std::string HostPort::ToString() const {
  if (port) return JoinHostPort(host, *port);
  return host;
}

Result<HostPort> ParseHostPort(std::string_view field, std::string_view text) {
  HostPort result;
  std::string_view rest;  // What follows the host: nothing, or a colon and the port.
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Bad(field, text, "has no closing bracket");
    result.host = text.substr(1, close - 1);
    // Without its brackets it would be read as a host and a port.
    if (std::ranges::count(result.host, ':') == 1) {
      return Bad(field, text, "has brackets around what is no IPv6 address");
    }
    rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return Bad(field, text, "goes on after the bracket");
  } else {
    const size_t colon = text.find(':');
    const bool one_colon = colon != std::string_view::npos && colon == text.rfind(':');
    result.host = one_colon ? text.substr(0, colon) : text;
    if (one_colon) rest = text.substr(colon);
  }
  if (result.host.empty()) return Bad(field, text, "has no host");
  if (result.host.find_first_of(" \t\r\n[]/@") != std::string::npos) {
    return Bad(field, text, "has a character that no host has");
  }
  if (!rest.empty()) {
    const std::optional<uint64_t> port = ParseUint(rest.substr(1), UINT16_MAX);
    if (!port) return Bad(field, text, "has a port that is not within 0..65535");
    result.port = static_cast<uint16_t>(*port);
  }
  return result;
}

std::string JoinHostPort(std::string_view host, uint16_t port) {
  if (host.find(':') != std::string_view::npos) return StrCat("[", host, "]:", port);
  return StrCat(host, ":", port);
}

}  // namespace mooncake::base

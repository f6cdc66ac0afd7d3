// URLs of services: scheme://user:password@host:port/path?query.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "mooncake/result.h"

namespace mooncake::base {

struct Url {
  std::string scheme;    // Lower case.
  std::string user;      // Percent-decoded, like the password.
  std::string password;  // Never show it: use Redacted().
  // Without brackets. Anything up to the path where that is no host:port, so that
  // memory://NAME and scheme://a:1,b:2 work.
  std::string host;
  std::optional<uint16_t> port;
  std::string path;   // With the slash in front, or empty; not decoded.
  std::string query;  // After the question mark; not decoded.

  // The URL for logs and errors: "***" in place of the password.
  std::string Redacted() const;
};

// kInvalidArgument names `field` and the text without its password.
Result<Url> ParseUrl(std::string_view field, std::string_view text);

// What Url::Redacted would give, for text that may not be a URL.
std::string RedactUrl(std::string_view text);

// Decodes %41 and the like. Empty: a percent sign without two hexadecimal digits.
std::optional<std::string> PercentDecode(std::string_view text);

}  // namespace mooncake::base

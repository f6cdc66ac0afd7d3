#include "metadata/redis/redis_url.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>

namespace mooncake::metadata {
namespace {

constexpr std::string_view kForm = "redis://[user:password@]host[:port][/db]";

Error Malformed(std::string_view part, std::string_view why) {
  return InvalidArgument(fmt::format("metadata_url: {} {}; the form is {}", part, why, kForm));
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    unsigned value = 0;
    if (i + 2 >= text.size()) return std::nullopt;
    const char* digits = text.data() + i + 1;
    if (std::from_chars(digits, digits + 2, value, 16).ptr != digits + 2) return std::nullopt;
    decoded += static_cast<char>(value);
    i += 2;
  }
  return decoded;
}

template <typename Number>
bool ParseNumber(std::string_view text, Number& out) {
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [next, error] = std::from_chars(begin, end, out);
  return error == std::errc() && next == end;
}

Status ParseCredentials(std::string_view text, RedisAddress& address) {
  const size_t colon = text.find(':');
  const auto username = PercentDecode(text.substr(0, colon));
  const auto password =
      colon == std::string_view::npos ? std::string() : PercentDecode(text.substr(colon + 1));
  if (!username || !password) return Malformed("the credentials", "have a broken % escape");
  address.username = *username;
  address.password = *password;
  return Ok();
}

Status ParseHostPort(std::string_view text, RedisAddress& address) {
  std::string_view port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string_view::npos) return Malformed("the host", "lacks its ]");
    address.host = text.substr(1, close - 1);
    text.remove_prefix(close + 1);
    has_port = text.starts_with(':');
    if (!text.empty() && !has_port) return Malformed("the host", "is followed by other text");
    if (has_port) port = text.substr(1);
  } else {
    const size_t colon = text.find(':');
    has_port = colon != std::string_view::npos;
    address.host = text.substr(0, colon);
    if (has_port) port = text.substr(colon + 1);
  }
  if (address.host.empty()) return Malformed("the host", "is empty");
  if (has_port && (!ParseNumber(port, address.port) || address.port == 0)) {
    return Malformed("the port", "is not a number from 1 to 65535");
  }
  return Ok();
}

}  // namespace

std::string RedisAddress::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return fmt::format("redis://{}{}{}:{}/{}", v6 ? "[" : "", host, v6 ? "]" : "", port, db);
}

Result<RedisAddress> ParseRedisUrl(std::string_view url) {
  if (url.starts_with("rediss://")) {
    return Unsupported(
        "metadata_url: rediss:// needs TLS, which this build's Redis client lacks; "
        "use redis:// through a TLS tunnel");
  }
  constexpr std::string_view kScheme = "redis://";
  if (!url.starts_with(kScheme)) return Malformed("the scheme", "is not redis://");
  std::string_view rest = url.substr(kScheme.size());
  RedisAddress address;
  // The last @: an unescaped one in a password is a common slip, and hosts have none.
  const size_t at = rest.rfind('@');
  if (at != std::string_view::npos) {
    MC_RETURN_IF_ERROR(ParseCredentials(rest.substr(0, at), address));
    rest.remove_prefix(at + 1);
  }
  const size_t slash = rest.find('/');
  MC_RETURN_IF_ERROR(ParseHostPort(rest.substr(0, slash), address));
  if (slash == std::string_view::npos) return address;
  const std::string_view db = rest.substr(slash + 1);
  if (!db.empty() && (!ParseNumber(db, address.db) || address.db > 0x7fffffff)) {
    return Malformed("the database", "is not a number");
  }
  return address;
}

}  // namespace mooncake::metadata

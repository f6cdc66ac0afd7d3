#include "metadata/redis/redis_url.h"

#include <fmt/format.h>

#include <charconv>

#include "base/url.h"
#include "metadata/net/tls_query.h"

namespace mooncake::metadata {
namespace {

constexpr std::string_view kForm = "redis[s]://[user:password@]host[:port][/db][?tls_ca=FILE...]";

Error Malformed(std::string_view part, std::string_view why) {
  return InvalidArgument(fmt::format("metadata_url: {} {}; the form is {}", part, why, kForm));
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
  const auto username = base::PercentDecode(text.substr(0, colon));
  const auto password =
      colon == std::string_view::npos ? std::string() : base::PercentDecode(text.substr(colon + 1));
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
  return fmt::format("redis{}://{}{}{}:{}/{}", tls ? "s" : "", v6 ? "[" : "", host, v6 ? "]" : "",
                     port, db);
}

Result<RedisAddress> ParseRedisUrl(std::string_view url) {
  constexpr std::string_view kPlain = "redis://";
  constexpr std::string_view kSecure = "rediss://";
  const bool secure = url.starts_with(kSecure);
  if (!secure && !url.starts_with(kPlain)) {
    return Malformed("the scheme", "is neither redis:// nor rediss://");
  }
  std::string_view rest = url.substr(secure ? kSecure.size() : kPlain.size());
  RedisAddress address;
  // The last @: an unescaped one in a password is a common slip, and hosts have none.
  const size_t at = rest.rfind('@');
  if (at != std::string_view::npos) {
    MC_RETURN_IF_ERROR(ParseCredentials(rest.substr(0, at), address));
    rest.remove_prefix(at + 1);
  }
  const size_t question = rest.find('?');
  if (question != std::string_view::npos && !secure) {
    return Malformed("the part behind ?", "is for rediss:// only");
  }
  if (secure) {
    const bool has = question != std::string_view::npos;
    MC_TRY(address.tls, ParseTlsQuery(has ? rest.substr(question + 1) : ""));
  }
  rest = rest.substr(0, question);
  const size_t slash = rest.find('/');
  MC_RETURN_IF_ERROR(ParseHostPort(rest.substr(0, slash), address));
  if (address.tls) MC_RETURN_IF_ERROR(Tls::New(*address.tls, address.host));
  if (slash == std::string_view::npos) return address;
  const std::string_view db = rest.substr(slash + 1);
  if (!db.empty() && (!ParseNumber(db, address.db) || address.db > 0x7fffffff)) {
    return Malformed("the database", "is not a number");
  }
  return address;
}

}  // namespace mooncake::metadata

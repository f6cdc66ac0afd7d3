#include "metadata/redis/redis_url.h"

#include <fmt/format.h>

#include <charconv>

#include "base/hostport.h"
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

// What is wrong is not quoted: it may be a password that lacks its @.
Status ParseAddress(std::string_view text, RedisAddress& address) {
  const Result<base::HostPort> parsed = base::ParseHostPort("metadata_url", text);
  if (!parsed) return Malformed("the host or its port", "is missing or malformed");
  address.host = parsed->host;
  address.port = parsed->port.value_or(address.port);
  if (address.port == 0) return Malformed("the port", "is not a number from 1 to 65535");
  return Ok();
}

}  // namespace

std::string RedisAddress::ToString() const {
  return fmt::format("redis{}://{}/{}", tls ? "s" : "", base::JoinHostPort(host, port), db);
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
  MC_RETURN_IF_ERROR(ParseAddress(rest.substr(0, slash), address));
  if (address.tls) MC_RETURN_IF_ERROR(Tls::New(*address.tls, address.host));
  if (slash == std::string_view::npos) return address;
  const std::string_view db = rest.substr(slash + 1);
  if (!db.empty() && (!ParseNumber(db, address.db) || address.db > 0x7fffffff)) {
    return Malformed("the database", fmt::format("is '{}', which is not a number", db));
  }
  return address;
}

}  // namespace mooncake::metadata

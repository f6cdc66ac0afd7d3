#include "base/url.h"

#include <algorithm>

#include "base/hostport.h"
#include "base/text.h"

namespace mooncake::base {
namespace {

constexpr std::string_view kSchemeEnd = "://";

Error Bad(std::string_view field, std::string_view text, std::string_view why) {
  return InvalidArgument(StrCat(field, ": \"", RedactUrl(text), "\" ", why,
                                "; allowed: scheme://[user:password@]host[:port][/path]"));
}

bool IsScheme(std::string_view text) {
  if (text.empty() || text.front() < 'a' || text.front() > 'z') return false;
  return text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+-.") ==
         std::string_view::npos;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Sets the user and the password from the text before the at sign. False: wrong encoding.
bool SetCredentials(std::string_view text, Url& url) {
  const size_t colon = text.find(':');
  std::optional<std::string> user = PercentDecode(text.substr(0, colon));
  std::optional<std::string> password = std::string();
  if (colon != std::string_view::npos) password = PercentDecode(text.substr(colon + 1));
  if (!user || !password) return false;
  url.user = *std::move(user);
  url.password = *std::move(password);
  return true;
}

}  // namespace

std::string Url::Redacted() const {
  std::string text = StrCat(scheme, kSchemeEnd, user);
  if (!password.empty()) text += ":***";
  if (!user.empty() || !password.empty()) text += '@';
  text += port ? JoinHostPort(host, *port) : host;
  text += path;
  if (!query.empty()) text.append("?").append(query);
  return text;
}

Result<Url> ParseUrl(std::string_view field, std::string_view text) {
  const size_t scheme_end = text.find(kSchemeEnd);
  if (scheme_end == std::string_view::npos) return Bad(field, text, "has no scheme");
  Url url;
  url.scheme = Lower(text.substr(0, scheme_end));
  if (!IsScheme(url.scheme)) return Bad(field, text, "has a malformed scheme");

  const std::string_view rest = text.substr(scheme_end + kSchemeEnd.size());
  const size_t authority_end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, authority_end);
  const std::string_view tail = rest.substr(authority_end);
  const size_t question = tail.find('?');
  url.path = tail.substr(0, question);
  if (question != std::string_view::npos) url.query = tail.substr(question + 1);

  // The last at sign: passwords with one are often pasted without encoding.
  if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
    if (!SetCredentials(authority.substr(0, at), url)) {
      return Bad(field, text, "has a percent sign without two hexadecimal digits");
    }
    authority.remove_prefix(at + 1);
  }
  if (authority.empty()) return url;
  Result<HostPort> address = ParseHostPort(field, authority);
  if (!address) return Bad(field, text, "has a malformed host or port");
  url.host = std::move(address->host);
  url.port = address->port;
  return url;
}

std::string RedactUrl(std::string_view text) {
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos) return std::string(text);
  const size_t scheme_end = text.find(kSchemeEnd);
  const size_t start = scheme_end < at ? scheme_end + kSchemeEnd.size() : 0;
  const size_t colon = text.find(':', start);
  if (colon >= at) return std::string(text);
  return StrCat(text.substr(0, colon), ":***", text.substr(at));
}

std::optional<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]);
    const int low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

}  // namespace mooncake::base

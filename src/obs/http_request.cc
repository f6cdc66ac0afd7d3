#include "obs/http_request.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "base/url.h"

namespace mooncake::obs {
namespace {

constexpr int kBadRequest = 400;
constexpr int kMethodNotAllowed = 405;
constexpr int kVersionNotSupported = 505;

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }

// Without %XX; no control character may come out.
std::optional<std::string> Decode(std::string_view text, bool plus_is_space) {
  std::string spaced(text);
  if (plus_is_space) std::ranges::replace(spaced, '+', ' ');
  std::optional<std::string> decoded = base::PercentDecode(spaced);
  if (decoded && std::ranges::any_of(*decoded, IsControl)) return std::nullopt;
  return decoded;
}

bool ParseTarget(std::string_view target, HttpRequest* request) {
  if (!target.starts_with('/')) return false;
  target = target.substr(0, target.find('#'));
  const size_t mark = target.find('?');
  const auto path = Decode(target.substr(0, mark), false);
  if (!path) return false;
  request->path = *path;
  if (mark == std::string_view::npos) return true;
  for (std::string_view pair : base::Split(target.substr(mark + 1), '&')) {
    if (pair.empty()) continue;
    const size_t equals = pair.find('=');
    const auto name = Decode(pair.substr(0, equals), true);
    const auto value =
        equals == std::string_view::npos ? std::string() : Decode(pair.substr(equals + 1), true);
    if (!name || !value) return false;
    request->query[*name] = *value;
  }
  return true;
}

bool IsTokenCharacter(char c) {
  return c > ' ' && c < '\x7f' &&
         std::string_view("\"(),/:;<=>?@[\\]{}").find(c) == std::string_view::npos;
}

bool ParseHeader(std::string_view line, HttpRequest* request) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view name = line.substr(0, colon);
  if (!std::all_of(name.begin(), name.end(), IsTokenCharacter)) return false;
  const std::string_view value = base::Trim(line.substr(colon + 1));
  if (std::ranges::any_of(value, [](char c) { return IsControl(c) && c != '\t'; })) return false;
  request->headers[base::Lower(name)] = value;
  return true;
}

// Takes the next line off `text`, which may end in \r\n or \n.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

int ParseHttpRequest(std::string_view head, HttpRequest* request) {
  const std::vector<std::string_view> words = base::Split(TakeLine(&head), ' ');
  if (words.size() != 3 || words[0].empty()) return kBadRequest;
  if (!std::all_of(words[0].begin(), words[0].end(), IsTokenCharacter)) return kBadRequest;
  if (words[2] != "HTTP/1.1" && words[2] != "HTTP/1.0") {
    return words[2].starts_with("HTTP/") ? kVersionNotSupported : kBadRequest;
  }
  if (words[0] != "GET") return kMethodNotAllowed;
  if (!ParseTarget(words[1], request)) return kBadRequest;
  while (!head.empty()) {
    const std::string_view line = TakeLine(&head);
    if (line.empty()) return 0;
    if (!ParseHeader(line, request)) return kBadRequest;
  }
  return kBadRequest;
}

}  // namespace mooncake::obs

#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <numeric>

namespace mooncake::base {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trim(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (true) {
    const size_t at = text.find(separator);
    pieces.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

std::optional<uint64_t> ParseUint(std::string_view text, uint64_t max) {
  uint64_t number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || number > max) return std::nullopt;
  return number;
}

bool IsUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  for (size_t i = 0; i < text.size();) {
    const uint8_t first = byte(i);
    if (first < 0x80) {
      ++i;
      continue;
    }
    const size_t more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
    if (first < 0xc2 || first > 0xf4 || text.size() - i <= more) return false;
    const uint8_t least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i + 1) < least || byte(i + 1) > most) return false;
    for (size_t k = 2; k <= more; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    i += more + 1;
  }
  return true;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  // distance[j] is that of the part of `a` seen so far to the first j characters of `b`.
  std::vector<size_t> distance(b.size() + 1);
  std::iota(distance.begin(), distance.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = distance[0];
    distance[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = distance[j + 1];
      distance[j + 1] = std::min({substituted, diagonal + 1, distance[j] + 1});
    }
  }
  return distance[b.size()];
}

}  // namespace mooncake::base

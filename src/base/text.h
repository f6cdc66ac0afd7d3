// Small helpers for text. ASCII only, but for IsUtf8: what is beyond it is bytes to the store.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mooncake::base {

std::string Lower(std::string_view text);
std::string_view Trim(std::string_view text);  // Without spaces and tabs around it.

// The pieces between separators, empty ones too; one piece when there is no separator.
std::vector<std::string_view> Split(std::string_view text, char separator);

// All of `text` as a decimal number without sign. Empty: not one, or above `max`.
std::optional<uint64_t> ParseUint(std::string_view text, uint64_t max = UINT64_MAX);

// Whether it is well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF
// (Unicode 15, table 3-7).
bool IsUtf8(std::string_view text);

// The number of insertions, deletions and substitutions of one character between the two.
size_t EditDistance(std::string_view a, std::string_view b);

inline std::string Piece(std::string_view text) { return std::string(text); }
template <std::integral T>
std::string Piece(T number) {
  return std::to_string(number);
}

// StrCat("port ", 70000, " is too large"): for error texts.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::string text;
  (text.append(Piece(parts)), ...);
  return text;
}

}  // namespace mooncake::base

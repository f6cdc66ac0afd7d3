// The values of the hammer: they say of which key and put they are, so that a reader needs to
// know nothing to tell a whole value from a torn, foreign or short one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mooncake::hammer {

inline constexpr int kKeys = 1000;
inline constexpr size_t kValueMin = 16;
inline constexpr size_t kValueMax = 64 * 1024;

std::string KeyOf(int key);
// Keys that are put once, for the tests that kill.
std::string KeptKeyOf(int key);

// `stamp` tells this put of the key from all others.
std::string ValueOf(std::string_view key, uint64_t stamp, size_t size);
// Whether `value` is one of the key's.
bool IsValueOf(std::string_view key, std::string_view value);

}  // namespace mooncake::hammer

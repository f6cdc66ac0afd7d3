// What a trace says about a key without saying the key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mooncake::obs {

// "sha256:" and the first 16 bytes of the digest, in hex.
std::string HashOfKey(std::string_view key);
// The first 16 characters.
std::string PrefixOfKey(std::string_view key);

// What engines write at the end of a key: "..._<rank>_k" or "..._<rank>_v".
struct KeyParts {
  std::optional<uint64_t> tp_rank;
  std::string_view kv_kind;  // "k", "v" or empty.
};
KeyParts PartsOfKey(std::string_view key);

}  // namespace mooncake::obs

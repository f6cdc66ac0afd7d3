#include "obs/trace_keys.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/text.h"

namespace mooncake::obs {

namespace {
constexpr size_t kDigestBytesShown = 16;
constexpr size_t kPrefixCharacters = 16;
}  // namespace

std::string HashOfKey(std::string_view key) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest = {};
  if (EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    return "sha256:unavailable";
  }
  std::string text = "sha256:";
  for (size_t i = 0; i < kDigestBytesShown; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

std::string PrefixOfKey(std::string_view key) {
  size_t end = 0;
  for (size_t characters = 0; end < key.size(); ++end) {
    const bool starts_one = (static_cast<unsigned char>(key[end]) & 0xC0) != 0x80;
    if (starts_one && characters++ == kPrefixCharacters) break;
  }
  return std::string(key.substr(0, end));
}

KeyParts PartsOfKey(std::string_view key) {
  if (!key.ends_with("_k") && !key.ends_with("_v")) return {};
  const std::string_view kind = key.substr(key.size() - 1);
  key.remove_suffix(2);
  const size_t before = key.rfind('_');
  if (before == std::string_view::npos) return {};
  const auto rank = base::ParseUint(key.substr(before + 1));
  if (!rank) return {};
  return {rank, kind};
}

}  // namespace mooncake::obs

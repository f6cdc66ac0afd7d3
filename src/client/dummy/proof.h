// How a dummy client proves that it knows the cluster secret, without sending it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mooncake::client {

// HMAC-SHA256 of the nonce under the secret.
std::string ProofOf(std::string_view secret, std::string_view nonce);
// In constant time.
bool SameProof(std::string_view a, std::string_view b);
// 32 bytes that nobody can guess. nullopt: the operating system has none.
std::optional<std::string> NewNonce();

}  // namespace mooncake::client

#include "client/dummy/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace mooncake::client {

std::string ProofOf(std::string_view secret, std::string_view nonce) {
  unsigned char proof[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  const std::string text = "mooncake-store daemon hello " + std::string(nonce);
  if (HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof,
           &size) == nullptr) {
    return {};
  }
  return {reinterpret_cast<const char*>(proof), size};
}

bool SameProof(std::string_view a, std::string_view b) {
  return !a.empty() && a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<std::string> NewNonce() {
  unsigned char bytes[32];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) return std::nullopt;
  return std::string(reinterpret_cast<const char*>(bytes), sizeof(bytes));
}

}  // namespace mooncake::client

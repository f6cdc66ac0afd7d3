#include "transfer/tcp/auth.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace mooncake::transfer {

void MakeProof(const std::string& secret, Prover prover, const Hello& client, const Hello& server,
               uint8_t (&proof)[kProofSize]) {
  std::string text = prover == Prover::kClient ? "mooncake client" : "mooncake server";
  text.append(reinterpret_cast<const char*>(client.nonce), kNonceSize);
  text.append(reinterpret_cast<const char*>(server.nonce), kNonceSize);
  unsigned int size = 0;
  const unsigned char* made =
      HMAC(EVP_sha256(), secret.data(), static_cast<int>(secret.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), proof, &size);
  MC_CHECK(made != nullptr && size == kProofSize);
}

bool ProofsEqual(const uint8_t (&a)[kProofSize], const uint8_t (&b)[kProofSize]) {
  return CRYPTO_memcmp(a, b, kProofSize) == 0;
}

bool FillNonce(Hello& hello) { return RAND_bytes(hello.nonce, kNonceSize) == 1; }

}  // namespace mooncake::transfer

// Who may talk to whom: both ends prove that they know the cluster secret without sending it.
// The client proves itself first, so an end that merely connects learns nothing to guess from.
#pragma once

#include <cstdint>
#include <string>

#include "transfer/tcp/frame.h"

namespace mooncake::transfer {

enum class Prover : uint8_t { kClient, kServer };

// HMAC-SHA256 over the prover's role and both nonces: a proof cannot be reflected or replayed.
void MakeProof(const std::string& secret, Prover prover, const Hello& client, const Hello& server,
               uint8_t (&proof)[kProofSize]);

// In constant time.
bool ProofsEqual(const uint8_t (&a)[kProofSize], const uint8_t (&b)[kProofSize]);

// Unpredictable bytes for a challenge. False: the operating system has none.
bool FillNonce(Hello& hello);

}  // namespace mooncake::transfer

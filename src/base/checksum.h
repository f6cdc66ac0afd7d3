// The checksum of values: XXH3, 64 bits (https://xxhash.com), over the concatenation of the
// pieces. Vectorised for the processor that runs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mooncake/bytes.h"

namespace mooncake::base {

uint64_t Checksum(ConstBytes bytes);
uint64_t Checksum(std::span<const ConstBytes> pieces);

// Copies and returns the checksum of what was copied, in one pass: also of a source that somebody
// changes meanwhile.
// REQUIRES: target.size() >= source.size(); the two do not overlap.
uint64_t CopyWithChecksum(MutableBytes target, ConstBytes source);

// For bytes that arrive piece by piece. Copyable: a copy goes on independently. About 600 bytes,
// no allocation.
class ChecksumStream {
 public:
  ChecksumStream() { Reset(); }
  void Reset();
  void Update(ConstBytes bytes);
  uint64_t Digest() const;

 private:
  alignas(64) std::byte state_[576];  // XXH3_state_t.
};

}  // namespace mooncake::base

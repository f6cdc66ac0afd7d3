#include "base/checksum.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/xxh3_kernel.h"

namespace mooncake::base {
namespace {

// Fits the first-level cache together with the source, so the hash reads what the copy has just
// written without a trip to memory.
constexpr size_t kCopyChunkBytes = 16 * 1024;

struct alignas(kXxh3StateAlignment) State {
  unsigned char bytes[kXxh3StateSize];
};

}  // namespace

uint64_t Checksum(ConstBytes bytes) { return BestXxh3Kernel().hash(bytes.data(), bytes.size()); }

uint64_t Checksum(std::span<const ConstBytes> pieces) {
  if (pieces.size() == 1) return Checksum(pieces.front());
  const Xxh3Kernel& kernel = BestXxh3Kernel();
  State state;
  kernel.reset(&state);
  for (ConstBytes piece : pieces) kernel.update(&state, piece.data(), piece.size());
  return kernel.digest(&state);
}

uint64_t CopyWithChecksum(MutableBytes target, ConstBytes source) {
  MC_CHECK(target.size() >= source.size());
  if (source.empty()) return Checksum(source);
  // The hash reads the target: it vouches for the bytes that were copied, even if somebody
  // changes the source meanwhile.
  if (source.size() <= kCopyChunkBytes) {
    std::memcpy(target.data(), source.data(), source.size());
    return Checksum(target.first(source.size()));
  }
  const Xxh3Kernel& kernel = BestXxh3Kernel();
  State state;
  kernel.reset(&state);
  for (size_t at = 0; at < source.size(); at += kCopyChunkBytes) {
    const size_t size = std::min(kCopyChunkBytes, source.size() - at);
    std::memcpy(target.data() + at, source.data() + at, size);
    kernel.update(&state, target.data() + at, size);
  }
  return kernel.digest(&state);
}

ChecksumStream::ChecksumStream() : state_(new State) { Reset(); }
ChecksumStream::ChecksumStream(const ChecksumStream& other)
    : state_(new State(*static_cast<const State*>(other.state_))) {}
ChecksumStream& ChecksumStream::operator=(const ChecksumStream& other) {
  *static_cast<State*>(state_) = *static_cast<const State*>(other.state_);
  return *this;
}
ChecksumStream::~ChecksumStream() { delete static_cast<State*>(state_); }
void ChecksumStream::Reset() { BestXxh3Kernel().reset(state_); }
void ChecksumStream::Update(ConstBytes bytes) {
  BestXxh3Kernel().update(state_, bytes.data(), bytes.size());
}
uint64_t ChecksumStream::Digest() const { return BestXxh3Kernel().digest(state_); }

}  // namespace mooncake::base

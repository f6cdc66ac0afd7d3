#include "base/checksum.h"

#include "base/check.h"
#include "base/xxh3_kernel.h"

namespace mooncake::base {

uint64_t Checksum(ConstBytes bytes) { return BestXxh3Kernel().hash(bytes.data(), bytes.size()); }

uint64_t Checksum(std::span<const ConstBytes> pieces) {
  if (pieces.size() == 1) return Checksum(pieces.front());
  ChecksumStream stream;
  for (ConstBytes piece : pieces) stream.Update(piece);
  return stream.Digest();
}

uint64_t CopyWithChecksum(MutableBytes target, ConstBytes source) {
  MC_CHECK(target.size() >= source.size());
  if (source.empty()) return Checksum(source);
  return BestXxh3Kernel().copy(target.data(), source.data(), source.size());
}

void ChecksumStream::Reset() {
  static_assert(sizeof(state_) >= kXxh3StateSize && alignof(ChecksumStream) >= kXxh3StateAlignment);
  BestXxh3Kernel().reset(state_);
}
void ChecksumStream::Update(ConstBytes bytes) {
  BestXxh3Kernel().update(state_, bytes.data(), bytes.size());
}
uint64_t ChecksumStream::Digest() const { return BestXxh3Kernel().digest(state_); }

}  // namespace mooncake::base

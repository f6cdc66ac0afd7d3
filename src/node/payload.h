// Payload bookkeeping of the asking side: gathering values with their checksums, scattering
// replies into the caller's memory while checking theirs. One pass over the bytes each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/checksum.h"
#include "mooncake/bytes.h"
#include "node/types.h"

namespace mooncake::node {

// The pieces of several values, in order, then a trailer with the checksum of each value that
// is filled in while the bytes go out.
class GatherPlan {
 public:
  // REQUIRES: all values are added before pieces() is taken.
  void Add(std::span<const ConstBytes> parts);
  const std::vector<ConstBytes>& Seal();
  uint64_t ChecksumOf(size_t value) const;
  uint64_t trailer_size() const { return trailer_.size(); }

  // As in CallObserver.
  void OnSend(size_t piece, ConstBytes chunk);
  void Restart();

 private:
  struct Value {
    uint64_t size = 0;
    uint64_t seen = 0;
  };
  std::vector<ConstBytes> pieces_;
  std::vector<uint32_t> value_of_piece_;
  std::vector<Value> values_;
  std::vector<std::byte> trailer_;
  base::ChecksumStream stream_;
};

// Where the values of a reply go, and whether their bytes were the right ones.
class ScatterPlan {
 public:
  // `size` bytes go to the front of `targets`. REQUIRES: they fit.
  void Add(std::span<const MutableBytes> targets, uint64_t size, bool check, uint64_t checksum);
  std::span<const MutableBytes> pieces() const { return pieces_; }
  void OnReceive(size_t piece, ConstBytes chunk);
  // All bytes of the value came, with the right checksum where one was given.
  bool Right(size_t value) const { return values_[value].right; }
  void Clear();

 private:
  struct Value {
    uint64_t size = 0;
    uint64_t seen = 0;
    uint64_t checksum = 0;
    bool check = false;
    bool right = false;
  };
  std::vector<MutableBytes> pieces_;
  std::vector<uint32_t> value_of_piece_;
  std::vector<Value> values_;
  base::ChecksumStream stream_;
};

// Copies `source` to the front of `targets`; returns its checksum. REQUIRES: it fits.
uint64_t CopyOut(ConstBytes source, std::span<const MutableBytes> targets);
// Copies the parts, one behind the other, to `target`; returns their checksum.
// REQUIRES: target.size() == TotalSize(parts).
uint64_t CopyIn(std::span<const ConstBytes> parts, MutableBytes target);

}  // namespace mooncake::node

// Rubbish that is close to something good: what a parser meets when a sender is broken, old, new or
// hostile. A seed decides all of it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace mooncake::fuzz {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(base::Mix64(seed)) {}

  uint64_t Next() { return base::Mix64(state_ += 0x9e3779b97f4a7c15); }
  uint64_t Below(uint64_t limit) { return limit == 0 ? 0 : Next() % limit; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  // 0, 1, powers of two and their neighbours, the largest ones: where arithmetic goes wrong.
  uint64_t Extreme();
  std::string Bytes(size_t size);
  template <typename T>
  const T& Of(const std::vector<T>& items) {
    return items[Below(items.size())];
  }

 private:
  uint64_t state_;
};

enum class Format : uint8_t { kText, kBinary };

// One of the samples as it is, changed in a few places, or no sample at all. Rarely more than
// 128 KiB.
std::string InputFrom(const std::vector<std::string>& samples, Format format, Random& random);

// `input` with one change.
void Change(std::string& input, const std::vector<std::string>& samples, Format format,
            Random& random);

}  // namespace mooncake::fuzz

#include "bench/contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace mooncake::bench {
namespace {

constexpr size_t kWord = sizeof(uint64_t);

uint64_t WordAt(uint64_t seed, uint64_t index) { return base::Mix64(seed + index); }

}  // namespace

std::string KeyName(uint64_t run, uint64_t index) {
  return fmt::format("bench-{:08x}-{:08d}", static_cast<uint32_t>(run), index);
}

void FillValue(uint64_t seed, MutableBytes value) {
  seed = base::Mix64(seed + 1);
  for (size_t at = 0; at < value.size(); at += kWord) {
    const uint64_t word = WordAt(seed, at / kWord);
    std::memcpy(value.data() + at, &word, std::min(kWord, value.size() - at));
  }
}

size_t FirstWrongByte(uint64_t seed, ConstBytes value) {
  seed = base::Mix64(seed + 1);
  for (size_t at = 0; at < value.size(); at += kWord) {
    const uint64_t word = WordAt(seed, at / kWord);
    const size_t size = std::min(kWord, value.size() - at);
    if (std::memcmp(value.data() + at, &word, size) == 0) continue;
    const auto* expected = reinterpret_cast<const std::byte*>(&word);
    return at + static_cast<size_t>(
                    std::mismatch(expected, expected + size, value.data() + at).first - expected);
  }
  return value.size();
}

}  // namespace mooncake::bench

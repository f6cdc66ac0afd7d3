#include "integration/hammer/values.h"

#include <cstring>

#include "base/hash.h"

namespace mooncake::hammer {

namespace {

uint64_t SeedOf(std::string_view key, uint64_t stamp, uint64_t size) {
  return base::Hash64(key, base::Mix64(stamp) ^ size);
}

// Fills from byte 16 on: words that tell key, stamp, size and position.
void Fill(uint64_t seed, char* data, size_t size) {
  for (size_t at = kValueMin; at < size; at += sizeof(uint64_t)) {
    const uint64_t word = base::Mix64(seed + at);
    std::memcpy(data + at, &word, std::min(sizeof word, size - at));
  }
}

}  // namespace

std::string KeyOf(int key) { return "key-" + std::to_string(key); }

std::string KeptKeyOf(int key) { return "kept-" + std::to_string(key); }

std::string ValueOf(std::string_view key, uint64_t stamp, size_t size) {
  std::string value(size, '\0');
  const uint64_t seed = SeedOf(key, stamp, size);
  std::memcpy(value.data(), &stamp, sizeof stamp);
  std::memcpy(value.data() + sizeof stamp, &seed, sizeof seed);
  Fill(seed, value.data(), size);
  return value;
}

bool IsValueOf(std::string_view key, std::string_view value) {
  if (value.size() < kValueMin) return false;
  uint64_t stamp = 0;
  std::memcpy(&stamp, value.data(), sizeof stamp);
  return value == ValueOf(key, stamp, value.size());
}

}  // namespace mooncake::hammer

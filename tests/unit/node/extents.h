// An extent store with small segments, and reservations in one line.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "node/extent_store.h"

namespace mooncake::node {

inline void AddSegment(ExtentStore& store, std::string name, uint64_t bytes) {
  auto memory = MappedMemory::Map(bytes, 0);
  MC_CHECK(memory.ok());
  store.AddSegment(std::move(name), *std::move(memory));
}

// `key` outlives the reservation, not the extent.
inline KeyRef RefOf(std::string_view key, ScopeIndex scope = 0) {
  return {routing::KeyHash(scope, key), scope, key};
}

inline ExtentPin Reserve(ExtentStore& store, std::string_view key, uint64_t size,
                         bool soft_pin = false, std::string_view segment = {}) {
  return store.Reserve({RefOf(key), size, soft_pin, kSelf, 0, segment});
}

inline ExtentPin Live(ExtentStore& store, std::string_view key, uint64_t size, Version version = 1,
                      bool soft_pin = false) {
  ExtentPin pin = Reserve(store, key, size, soft_pin);
  if (pin) store.Commit(*pin, version);
  return pin;
}

inline void Fill(const Extent& extent, char letter) {
  std::memset(extent.data().data(), letter, extent.size());
}
inline bool IsFull(const Extent& extent, char letter) {
  return TextOf(extent.data()) == std::string(extent.size(), letter);
}

}  // namespace mooncake::node

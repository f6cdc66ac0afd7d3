#include "client/dummy/messages.h"

#include <fmt/format.h>

#include "mooncake/store.h"

namespace mooncake::client {

Status CheckKey(std::string_view key) {
  if (!key.empty() && key.size() <= kKeySizeMax) return Ok();
  return InvalidArgument(
      fmt::format("key of {} bytes: expected 1 to {} bytes of UTF-8", key.size(), kKeySizeMax));
}

void AddKey(std::string_view key, daemon_v1::Keys* keys) {
  keys->mutable_blob()->append(key);
  keys->add_sizes(static_cast<uint32_t>(key.size()));
}

// Those of the keys that `items` names.
void AddKeys(std::span<const std::string_view> keys, std::span<const size_t> items,
             daemon_v1::Keys* out) {
  size_t bytes = 0;
  for (size_t i : items) bytes += keys[i].size();
  out->mutable_blob()->reserve(bytes);
  out->mutable_sizes()->Reserve(static_cast<int>(items.size()));
  for (size_t i : items) AddKey(keys[i], out);
}

}  // namespace mooncake::client

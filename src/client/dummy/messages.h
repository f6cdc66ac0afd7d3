// What the calls of a dummy store have in common: keys into messages, errors out of them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "mooncake/result.h"
#include "mooncake/v1/store_daemon.pb.h"

namespace mooncake::client {

namespace daemon_v1 = ::mooncake::daemon::v1;

// A call's keys have to fit a frame, with what else there is.
inline constexpr uint64_t kKeyBytesPerCallMax = 32ULL << 20;

Status CheckKey(std::string_view key);
void AddKey(std::string_view key, daemon_v1::Keys* keys);
// Those of the keys that `items` names.
void AddKeys(std::span<const std::string_view> keys, std::span<const size_t> items,
             daemon_v1::Keys* out);
inline Error ItemError(int32_t code, const std::string& text) {
  return {static_cast<ErrorCode>(code), text};
}

}  // namespace mooncake::client

// What setup, heartbeats and the metadata services agree about.
#pragma once

#include <cstdint>

namespace mooncake {

// Of a lease: seven days, for which epochs are remembered after it.
inline constexpr uint64_t kLeaseMsMax = uint64_t{7} * 24 * 3'600 * 1'000;

}  // namespace mooncake

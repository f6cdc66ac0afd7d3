// What setup and a node that grows agree about.
#pragma once

#include <cstdint>

namespace mooncake {

// Of a segment, in bytes: one page. A smaller one would be offered and could hold next to nothing.
inline constexpr uint64_t kSegmentSizeMin = 4096;

}  // namespace mooncake

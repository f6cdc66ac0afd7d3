// The Unix socket between a dummy client and its daemon: what travels on it besides descriptors.
// SOCK_SEQPACKET, so a message is one packet; integers in the host's order, as both ends are on
// one host. Every request is answered by one Answer, in order.
#pragma once

#include <cstdint>

namespace mooncake::client {

inline constexpr uint32_t kDaemonProtocolVersion = 3;
inline constexpr uint32_t kSideMagic = 0x4853434d;  // "MCSH"

enum class SideType : uint32_t {
  kAttach = 1,      // With the control page's descriptor. First on every connection.
  kRegister = 2,    // A region: `id`, `size`, with its descriptor.
  kUnregister = 3,  // `id`.
  kArea = 4,        // Asks for the memory behind area `id`; the answer has its descriptor.
  // First on a further connection of an attached session, which carries calls from then on
  // (call_frame.h). `id`: kCallVersion.
  kCalls = 5,
};

struct SideMessage {
  uint32_t magic = kSideMagic;
  SideType type = SideType::kAttach;
  uint64_t session_high = 0;
  uint64_t session_low = 0;
  uint64_t id = 0;
  uint64_t size = 0;
};
static_assert(sizeof(SideMessage) == 40);

struct SideAnswer {
  uint32_t magic = kSideMagic;
  int32_t code = 0;       // 0 or an ErrorCode.
  uint64_t size = 0;      // Of the area.
  char reason[104] = {};  // For people, where code is not 0.
};
static_assert(sizeof(SideAnswer) == 120);

// The control page: a word per call of the client that is being made, its sequence number; 0: no
// call. Written by the client, read by the daemon.
inline constexpr uint64_t kCallSlots = 4096;
inline constexpr uint64_t kControlBytes = kCallSlots * sizeof(uint32_t);

// Regions that the client names itself (host allocations) and those it makes for staging differ
// in the top bit. 0 is no region.
inline constexpr uint64_t kStagingRegion = 1ULL << 63;

// Areas of the daemon's memory. 0 is the reply's inline bytes.
inline constexpr uint64_t kHotCacheArea = 1;
inline constexpr uint64_t kSegmentAreas = 1ULL << 32;  // Plus the segment's index.
// Plus a serial number. Areas from kPassingAreas on are used for one reply only.
inline constexpr uint64_t kScratchAreas = 2ULL << 32;
inline constexpr uint64_t kPassingAreas = 3ULL << 32;

// Values up to this travel inside a message where the call is not one about buffers.
inline constexpr uint64_t kInlineValueMax = 16 << 10;
inline constexpr uint64_t kInlineMessageMax = 256 << 10;

}  // namespace mooncake::client

// The wire format of the tcp adapter. All integers are little-endian.
//
//   connection = client hello, server hello, [client proof, server verdict], frames
//   frame      = header, message, payload
//
// The hello's first eight bytes (magic, major, minor) keep their place in every version, so
// that two versions can tell each other apart. The proof and the verdict follow only where the
// server has a secret; without one the client sends its first frame right behind its hello.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace mooncake::transfer {

static_assert(std::endian::native == std::endian::little, "The wire structs are copied as is.");

inline constexpr uint32_t kHelloMagic = 0x4843434d;  // "MCCH"
inline constexpr uint32_t kFrameMagic = 0x4643434d;  // "MCCF"
inline constexpr uint16_t kProtocolMajor = 1;
inline constexpr uint16_t kProtocolMinor = 0;

inline constexpr uint32_t kNonceSize = 32;
inline constexpr uint32_t kProofSize = 32;  // HMAC-SHA256.

// Above any request timeout; a peer cannot make us hold a call open for longer.
inline constexpr uint32_t kTimeLeftMsMax = 3'600'000;

enum HelloFlags : uint32_t { kHelloHasSecret = 1 };
enum class HelloVerdict : uint32_t { kWelcome = 0, kVersion = 1, kSecret = 2 };

struct Hello {
  uint32_t magic = kHelloMagic;
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  uint32_t flags = 0;
  HelloVerdict verdict = HelloVerdict::kWelcome;  // Of the server; the client sends 0.
  uint8_t nonce[kNonceSize] = {};
};
static_assert(sizeof(Hello) == 48 && std::is_trivially_copyable_v<Hello>);

struct Verdict {
  HelloVerdict verdict = HelloVerdict::kWelcome;
  uint8_t proof[kProofSize] = {};
};
static_assert(sizeof(Verdict) == 36 && std::is_trivially_copyable_v<Verdict>);

enum FrameFlags : uint16_t { kFrameReply = 1 };

struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t major = kProtocolMajor;
  uint16_t minor = kProtocolMinor;
  uint16_t type = 0;
  uint16_t flags = 0;
  uint32_t message_size = 0;
  uint64_t request_id = 0;
  uint64_t payload_size = 0;
  uint32_t time_left_ms = 0;  // Of a request; 0: no deadline.
  uint32_t reserved = 0;
};
static_assert(sizeof(FrameHeader) == 40 && std::is_trivially_copyable_v<FrameHeader>);

// REQUIRES: bytes.size() >= sizeof(T).
template <typename T>
T ReadWire(std::string_view bytes) {
  T value;
  bytes.copy(reinterpret_cast<char*>(&value), sizeof(T));
  return value;
}

// Whether a frame with this header can be taken in at all.
bool IsSane(const FrameHeader& header, bool reply);

}  // namespace mooncake::transfer

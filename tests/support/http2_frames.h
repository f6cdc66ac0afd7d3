// Bytes of HTTP/2 and gRPC, right ones and wrong ones, for servers that send what a test says.
#pragma once

#include <cstdint>
#include <string>

namespace mooncake::testing::http2 {

constexpr int kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7,
              kWindow = 8;
constexpr int kEnd = 1, kEndHeaders = 4, kPadded = 8;

inline std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(value >> shift));
  }
  return text;
}

inline std::string Frame(int type, int flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         Number(stream, 4) + payload;
}

// One of a frame of settings.
inline std::string Setting(int id, uint32_t value) {
  return Number(static_cast<uint64_t>(id), 2) + Number(value, 4);
}

// A header as it is, neither packed nor to be remembered. Both parts have less than 127 bytes.
inline std::string Header(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

// With gRPC's prefix.
inline std::string Message(const std::string& text) { return '\0' + Number(text.size(), 4) + text; }

inline const std::string kReplyHead =
    Header(":status", "200") + Header("content-type", "application/grpc");
inline const std::string kReplyEnd = Header("grpc-status", "0");

// The whole reply to a call.
inline std::string Reply(uint32_t stream, const std::string& text) {
  return Frame(kHeaders, kEndHeaders, stream, kReplyHead) + Frame(kData, 0, stream, Message(text)) +
         Frame(kHeaders, kEndHeaders | kEnd, stream, kReplyEnd);
}

}  // namespace mooncake::testing::http2

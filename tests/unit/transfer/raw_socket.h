// RawSocket: a peer that says what a test wants, for what no well-behaved client sends.
#pragma once

#include <string>
#include <string_view>

#include "transfer/tcp/frame.h"
#include "transfer/tcp/socket.h"

namespace mooncake::transfer {

// The bytes of a wire struct.
template <typename T>
std::string WireBytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

inline FrameHeader RequestHeader(uint32_t message_size, uint64_t payload_size) {
  FrameHeader header;
  header.message_size = message_size;
  header.payload_size = payload_size;
  header.request_id = 1;
  return header;
}

// All of it fails the test when the operating system does.
class RawSocket {
 public:
  explicit RawSocket(const std::string& endpoint);  // Connects.
  explicit RawSocket(UniqueFd fd) : fd_(std::move(fd)) {}
  // False: the peer has closed the connection.
  bool Send(std::string_view bytes);
  // Up to `size` bytes; fewer when the peer closes or is silent for two seconds.
  std::string Receive(size_t size);
  // Whether the peer closes within two seconds, after whatever it sends.
  bool IsClosedByPeer();
  void Close() { fd_.Reset(); }

 private:
  UniqueFd fd_;
};

// Listens on loopback and hands out connections.
class RawListener {
 public:
  RawListener();
  const std::string& endpoint() const { return endpoint_; }
  RawSocket Accept();

 private:
  UniqueFd fd_;
  std::string endpoint_;
};

}  // namespace mooncake::transfer

// Calls on a Unix socket: what a frame looks like, and how it is sent and received.
//
// A connection that has said SideType::kCalls carries one call at a time: a frame with a message
// of store_daemon.proto, answered by a frame of the same type. A frame is a header and its body;
// it goes out in packets of at most kPacketBytes. An answer has a code, and with a code other
// than 0 its body is a text.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "mooncake/bytes.h"
#include "mooncake/result.h"

namespace mooncake::client {

inline constexpr uint32_t kCallVersion = 1;
inline constexpr uint32_t kCallMagic = 0x4c43434d;  // "MCCL"

enum class CallType : uint32_t {
  kPut = 1,        // PutRequest, CodesReply
  kAcquire = 2,    // AcquireRequest, AcquireReply
  kExist = 3,      // KeysRequest, CodesReply
  kRemove = 4,     // KeysRequest, CodesReply
  kSizes = 5,      // KeysRequest, SizesReply
  kHealth = 6,     // HealthRequest, HealthReply
  kRemoveAll = 7,  // RemoveAllRequest, RemoveAllReply
  kMetrics = 8,    // MetricsRequest, MetricsReply
};

struct CallHeader {
  uint32_t magic = kCallMagic;
  CallType type = CallType::kPut;
  // Of an answer: 0 or an ErrorCode. Of a request: where the daemon had best run. The caller's
  // processor if the caller does nothing but wait, AwayFrom that if it works on; kAnyProcessor.
  int32_t code = 0;
  uint32_t size = 0;  // Of the body.
};
static_assert(sizeof(CallHeader) == 16);

inline constexpr int32_t kAnyProcessor = -1;
// A code below kAnyProcessor for a processor, and back.
inline constexpr int32_t AwayFrom(int32_t processor) { return -2 - processor; }

inline constexpr size_t kPacketBytes = 64 << 10;
inline constexpr size_t kFrameBytesMax = 64 << 20;  // The body.

// Looks for a packet without sleeping, as waking a processor takes some 20 us; at once back on a
// host with one processor. For those who expect it that soon, of somebody who runs elsewhere.
// Whether there is one.
inline constexpr int kLooksForAnswer = 150;  // Of 0.2 us.
bool AwaitBriefly(int socket, int looks = kLooksForAnswer);

// One frame in memory that is kept from call to call. Not thread-safe.
class CallFrame {
 public:
  // Memory for a body, to be filled. REQUIRES: size <= kFrameBytesMax.
  MutableBytes Start(CallType type, int32_t code, size_t size);
  // A protobuf message. False: it is too large.
  template <typename Message>
  bool Pack(CallType type, int32_t code, const Message& message) {
    const size_t size = message.ByteSizeLong();
    if (size > kFrameBytesMax) return false;
    message.SerializeWithCachedSizesToArray(
        reinterpret_cast<uint8_t*>(Start(type, code, size).data()));
    return true;
  }
  template <typename Message>
  bool Unpack(Message* message) const {
    return message->ParseFromArray(body().data(), static_cast<int>(body().size()));
  }

  const CallHeader& header() const { return header_; }
  ConstBytes body() const;

  // Asked each time that the socket's timeout has passed. `begun`: a part of the frame has come
  // or gone already.
  using GiveUp = std::function<bool(bool begun)>;
  // kTransport: given up, or the other end has closed; the connection is of no use any more.
  Status Send(int socket, const GiveUp& give_up);
  // kInvalidArgument: what came is no frame, or promises more than kFrameBytesMax.
  Status Receive(int socket, const GiveUp& give_up);

 private:
  static constexpr size_t kHeader = sizeof(CallHeader);
  // The size of the next packet, at `at` of the memory.
  Result<size_t> ReceivePacketAt(int socket, size_t at, const GiveUp& give_up);
  void Reserve(size_t bytes);

  CallHeader header_;
  std::vector<std::byte> memory_;  // The header, then the body; the rest is left over.
};

}  // namespace mooncake::client

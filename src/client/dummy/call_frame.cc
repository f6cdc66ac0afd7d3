#include "client/dummy/call_frame.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mooncake::client {

namespace {

// A frame that was large once does not keep its memory.
constexpr size_t kKeptMax = 1 << 20;

Error Broken(const char* what) {
  return TransportError(fmt::format("{} on the socket for calls: {}", what, strerror(errno)));
}

// After a system call that failed: whether to make it again.
bool Again(const CallFrame::GiveUp& give_up, bool begun) {
  const bool waited = errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK;
  return waited && !give_up(begun);
}

}  // namespace

bool AwaitBriefly(int socket, int looks) {
  static const bool alone = sysconf(_SC_NPROCESSORS_ONLN) < 2;
  if (alone) return false;
  pollfd look = {socket, POLLIN, 0};
  for (int i = 0; i < looks; ++i) {
    if (poll(&look, 1, 0) != 0) return true;
  }
  return false;
}

void CallFrame::Reserve(size_t bytes) {
  if (memory_.size() >= bytes) return;
  memory_.resize(std::max(bytes, kHeader + kPacketBytes));
}

MutableBytes CallFrame::Start(CallType type, int32_t code, size_t size) {
  if (memory_.size() > kKeptMax && size < kKeptMax) std::vector<std::byte>().swap(memory_);
  Reserve(kHeader + size);
  header_ = {kCallMagic, type, code, static_cast<uint32_t>(size)};
  std::memcpy(memory_.data(), &header_, kHeader);
  return MutableBytes(memory_).subspan(kHeader, size);
}

ConstBytes CallFrame::body() const {
  if (header_.size == 0) return {};
  return ConstBytes(memory_).subspan(kHeader, header_.size);
}

Status CallFrame::Send(int socket, const GiveUp& give_up) {
  const size_t whole = kHeader + header_.size;
  for (size_t at = 0; at < whole;) {
    const size_t size = std::min(whole - at, kPacketBytes);
    if (send(socket, memory_.data() + at, size, MSG_NOSIGNAL) == static_cast<ssize_t>(size)) {
      at += size;
    } else if (!Again(give_up, at > 0)) {
      return Broken("cannot send");
    }
  }
  return Ok();
}

Result<size_t> CallFrame::ReceivePacketAt(int socket, size_t at, const GiveUp& give_up) {
  Reserve(at + kPacketBytes);
  while (true) {
    // With MSG_TRUNC the size is that of the packet, however little of it there was room for.
    const ssize_t got = recv(socket, memory_.data() + at, kPacketBytes, MSG_TRUNC);
    if (got > static_cast<ssize_t>(kPacketBytes)) return InvalidArgument("too large a packet");
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return TransportError("the socket for calls was closed");
    if (!Again(give_up, at > 0)) return Broken("nothing came");
  }
}

Status CallFrame::Receive(int socket, const GiveUp& give_up) {
  header_ = {};
  if (memory_.size() > kKeptMax) std::vector<std::byte>().swap(memory_);
  MC_TRY(size_t at, ReceivePacketAt(socket, 0, give_up));
  CallHeader header;
  if (at < kHeader) return InvalidArgument("too small a packet for a frame");
  std::memcpy(&header, memory_.data(), kHeader);
  if (header.magic != kCallMagic || header.size > kFrameBytesMax) {
    return InvalidArgument("no frame of a call");
  }
  // Memory grows with what has come, whatever was promised.
  const size_t whole = kHeader + header.size;
  while (at < whole) {
    MC_TRY(const size_t got, ReceivePacketAt(socket, at, give_up));
    at += got;
  }
  if (at > whole) return InvalidArgument("more than the frame's bytes");
  header_ = header;
  return Ok();
}

}  // namespace mooncake::client

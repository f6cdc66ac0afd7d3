// The I/O half of ServerConnection. All of it is non-blocking.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "transfer/tcp/server_connection.h"

namespace mooncake::transfer {
namespace {

// System calls for one connection before the others of its loop get their turn; what is left
// makes epoll report it again at once.
constexpr int kTurnsMax = 16;
// One receive or send of payload. Larger than the caller's chunks: nobody looks at the bytes.
constexpr size_t kPayloadStep = 1u << 20;

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

auto ServerConnection::Fill(size_t wanted) -> Io {
  while (in_.size() < wanted) {
    if (drained_ || ++turns_ > kTurnsMax) return Io::kAgain;
    const std::span<char> room = in_.Room(wanted);
    const ssize_t result = ::recv(fd(), room.data(), room.size(), MSG_DONTWAIT);
    if (result == 0) return Io::kEnded;
    if (result < 0) return WouldBlock(errno) ? Io::kAgain : Io::kEnded;
    if (phase_ == Phase::kHead && in_.empty()) entered_ms_ = now_ms_;
    in_.Commit(static_cast<size_t>(result));
    moved_ms_ = now_ms_;
    drained_ = static_cast<size_t>(result) < room.size();
  }
  return Io::kDone;
}

auto ServerConnection::ReceivePayload() -> Io {
  while (targets_.left() > 0) {
    if (drained_ || ++turns_ > kTurnsMax) return Io::kAgain;
    std::array<iovec, kIovecsMax> iovecs;
    size_t bytes = 0;
    msghdr message = {};
    message.msg_iov = iovecs.data();
    message.msg_iovlen = targets_.Fill(iovecs, kPayloadStep, bytes);
    const ssize_t result = ::recvmsg(fd(), &message, MSG_DONTWAIT);
    if (result == 0) return Io::kEnded;
    if (result < 0) return WouldBlock(errno) ? Io::kAgain : Io::kEnded;
    targets_.Advance(static_cast<uint64_t>(result));
    moved_ms_ = now_ms_;
    drained_ = static_cast<size_t>(result) < bytes;
  }
  return Io::kDone;
}

// Sends out_, the reply's message and its payload, or what is left of them.
auto ServerConnection::SendReply() -> Io {
  const uint64_t text_size = out_.size() + reply_.message.size();
  while (text_sent_ < text_size || unsent_.left() > 0) {
    if (++turns_ > kTurnsMax) return Io::kAgain;
    std::array<iovec, kIovecsMax + 2> iovecs;
    size_t count = 0, bytes = text_size - text_sent_;
    const size_t out_sent = std::min<uint64_t>(text_sent_, out_.size());
    const size_t message_sent = text_sent_ - out_sent;
    if (out_sent < out_.size()) {
      iovecs[count++] = {out_.data() + out_sent, out_.size() - out_sent};
    }
    if (message_sent < reply_.message.size()) {
      iovecs[count++] = {reply_.message.data() + message_sent,
                         reply_.message.size() - message_sent};
    }
    const size_t text = bytes;
    count += unsent_.Fill(std::span(iovecs).subspan(count, kIovecsMax), kPayloadStep, bytes);
    msghdr message = {};
    message.msg_iov = iovecs.data();
    message.msg_iovlen = count;
    const ssize_t result = ::sendmsg(fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (result < 0) return WouldBlock(errno) ? Io::kAgain : Io::kEnded;
    moved_ms_ = now_ms_;
    const size_t sent = static_cast<size_t>(result);
    text_sent_ += std::min(sent, text);
    if (sent > text) unsent_.Advance(sent - text);
    if (sent < bytes) return Io::kAgain;
  }
  out_.clear();
  text_sent_ = 0;
  return Io::kDone;
}

auto ServerConnection::Drain() -> Step {
  char waste[4096];
  while (++turns_ <= kTurnsMax) {
    const ssize_t result = ::recv(fd(), waste, sizeof waste, MSG_DONTWAIT);
    if (result > 0) continue;
    return result < 0 && WouldBlock(errno) ? Step::kRead : Step::kClose;
  }
  return Step::kRead;
}

}  // namespace mooncake::transfer

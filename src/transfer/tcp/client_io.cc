// The I/O half of ClientCall: what goes onto the wire and comes from it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "obs/log.h"
#include "transfer/tcp/auth.h"
#include "transfer/tcp/client_call.h"

namespace mooncake::transfer {
namespace {

bool WouldBlock(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

}  // namespace

using Progress = ClientCall::Progress;

auto ClientCall::Transmit(std::span<iovec> iovecs, int flags, size_t& sent) -> Io {
  msghdr message = {};
  message.msg_iov = iovecs.data();
  message.msg_iovlen = iovecs.size();
  const ssize_t result = ::sendmsg(fd(), &message, flags | MSG_NOSIGNAL);
  if (result < 0) {
    send_error_ = errno;
    return WouldBlock(send_error_) ? Io::kAgain : Io::kEnded;
  }
  moved_ = true;
  sent = static_cast<size_t>(result);
  return Io::kDone;
}

auto ClientCall::SendText(int flags) -> Io {
  iovec entry = {head_ + text_sent_, head_size_ - text_sent_};
  size_t sent = 0;
  const Io io = Transmit({&entry, 1}, flags, sent);
  text_sent_ += sent;
  return io == Io::kDone && text_sent_ < head_size_ ? Io::kAgain : io;
}

// 0: the end of the payload is not to follow.
uint64_t ClientCall::ChunkToAnnounce() {
  const uint64_t left = announced_.left();
  const uint64_t end = std::min(call_.observer->EndSize(), left);
  if (end == left && end > 0) {
    end_verdict_ = call_.observer->OnEnd();
    if (!end_verdict_.ok()) return 0;
  }
  return std::min<uint64_t>(context_.options.send_chunk_bytes, end == left ? left : left - end);
}

auto ClientCall::SendRequest(int flags) -> Io {
  if (announced_.left() > 0 && announced_.left() == unsent_.left()) {
    const uint64_t chunk = ChunkToAnnounce();
    if (chunk == 0) return Io::kHeldBack;
    announced_.Advance(
        chunk, [this](size_t piece, ConstBytes part) { call_.observer->OnSend(piece, part); });
  }
  std::array<iovec, kIovecsMax + 2> iovecs;
  const size_t text_left = head_size_ + call_.message.size() - text_sent_;
  size_t count = 0;
  if (text_sent_ < head_size_) iovecs[count++] = {head_ + text_sent_, head_size_ - text_sent_};
  const size_t message_sent = text_sent_ > head_size_ ? text_sent_ - head_size_ : 0;
  if (message_sent < call_.message.size()) {
    iovecs[count++] = {const_cast<char*>(call_.message.data()) + message_sent,
                       call_.message.size() - message_sent};
  }
  size_t bytes = 0, sent = 0;
  count += unsent_.Fill(std::span(iovecs).subspan(count, kIovecsMax),
                        unsent_.left() - announced_.left(), bytes);
  const Io io = Transmit(std::span(iovecs).first(count), flags, sent);
  if (io != Io::kDone) return io;
  const size_t text = std::min(sent, text_left);
  text_sent_ += text;
  unsent_.Advance(sent - text);
  sent_ += sent - text;
  return sent < text_left + bytes ? Io::kAgain : Io::kDone;
}

auto ClientCall::Fill(size_t wanted, int flags) -> Io {
  InputBuffer& in = connection_->in;
  while (in.size() < wanted) {
    const std::span<char> room = in.Room(wanted);
    const ssize_t result = ::recv(fd(), room.data(), room.size(), flags);
    if (result == 0) return Io::kEnded;
    if (result < 0) return WouldBlock(errno) ? Io::kAgain : Io::kEnded;
    in.Commit(static_cast<size_t>(result));
    moved_ = true;
    // A peer that sends byte by byte must not keep us from looking at the limits.
    drained_ = static_cast<size_t>(result) < room.size();
    if (drained_ && in.size() < wanted) return Io::kAgain;
  }
  return Io::kDone;
}

auto ClientCall::ReceiveChunk(int flags) -> Io {
  std::array<iovec, kIovecsMax> iovecs;
  size_t bytes = 0;
  msghdr message = {};
  message.msg_iov = iovecs.data();
  message.msg_iovlen = targets_.Fill(iovecs, context_.options.receive_chunk_bytes, bytes);
  const ssize_t result = ::recvmsg(fd(), &message, flags);
  if (result == 0) return Io::kEnded;
  if (result < 0) return WouldBlock(errno) ? Io::kAgain : Io::kEnded;
  moved_ = true;
  received_ += static_cast<uint64_t>(result);
  drained_ = static_cast<size_t>(result) < bytes;
  targets_.Advance(static_cast<uint64_t>(result), [this](size_t piece, MutableBytes part) {
    call_.observer->OnReceive(piece, part);
  });
  return Io::kDone;
}

Progress ClientCall::OnHello() {
  server_hello_ = ReadWire<Hello>(connection_->in.View());
  connection_->in.Consume(sizeof(Hello));
  const bool ours = !context_.options.secret.empty();
  const bool theirs = (server_hello_.flags & kHelloHasSecret) != 0;
  std::string refusal;
  CallFailure failure = CallFailure::kBroken;
  if (server_hello_.magic != kHelloMagic) {
    refusal = "does not speak this protocol";
  } else if (server_hello_.major != kProtocolMajor) {
    refusal = fmt::format("speaks protocol {}, we speak {}", server_hello_.major, kProtocolMajor);
  } else if (ours != theirs) {
    failure = CallFailure::kStranger;
    refusal = fmt::format("is not of this cluster: cluster secret differs, {}",
                          theirs ? "we have none" : "the peer has none");
  }
  if (!refusal.empty()) {
    reused_ = false;
    refusal = fmt::format("peer `{}` {}", call_.endpoint, refusal);
    obs::LogRateLimited(obs::LogLevel::kWarning, "transport.hello", refusal);
    return Finish(TransportError(std::move(refusal)), failure);
  }
  hello_pending_ = false;
  if (!ours) return {Wait::kRead, true};
  uint8_t proof[kProofSize];
  MakeProof(context_.options.secret, Prover::kClient, hello_, server_hello_, proof);
  std::memcpy(head_, proof, kProofSize);
  head_size_ = kProofSize;
  text_sent_ = 0;
  phase_ = Phase::kSendProof;
  return {Wait::kWrite, true};
}

Progress ClientCall::OnVerdict() {
  const auto verdict = ReadWire<Verdict>(connection_->in.View());
  connection_->in.Consume(sizeof(Verdict));
  uint8_t expected[kProofSize];
  MakeProof(context_.options.secret, Prover::kServer, hello_, server_hello_, expected);
  if (verdict.verdict != HelloVerdict::kWelcome || !ProofsEqual(verdict.proof, expected)) {
    std::string text =
        fmt::format("peer `{}` is not of this cluster: cluster secret differs", call_.endpoint);
    obs::LogRateLimited(obs::LogLevel::kWarning, "transport.hello", text);
    return Finish(TransportError(std::move(text)), CallFailure::kStranger);
  }
  PrepareRequest();
  return {Wait::kWrite, true};
}

// At least the header is buffered.
Progress ClientCall::OnReplyHead() {
  const auto header = ReadWire<FrameHeader>(connection_->in.View());
  reused_ = false;
  if (!IsSane(header, true) || header.request_id != connection_->requests) {
    return Broken("sent a malformed reply");
  }
  if (connection_->in.size() < Wanted()) return {Wait::kRead, !drained_};
  return OnReplyMessage(header);
}

Progress ClientCall::OnReplyMessage(const FrameHeader& header) {
  InputBuffer& in = connection_->in;
  auto targets = call_.observer->OnReply(in.View().substr(sizeof header, header.message_size),
                                         header.payload_size);
  in.Consume(sizeof header + header.message_size);
  if (!targets) {
    // Without a payload the connection is where the next request can start.
    if (header.payload_size == 0 && in.empty()) {
      context_.pool.Put(call_.endpoint, std::move(connection_), context_.runtime.NowMs());
    }
    return Finish(std::move(targets).error(), CallFailure::kLocal);
  }
  targets_ = PieceCursor<MutableBytes>(*targets);
  if (targets_.left() != header.payload_size) {
    return Finish(InvalidArgument(fmt::format("{} bytes of targets for a reply of {} bytes",
                                              targets_.left(), header.payload_size)),
                  CallFailure::kLocal);
  }
  phase_ = Phase::kReceive;
  TakeBuffered();
  if (targets_.left() == 0) return Complete();
  return {Wait::kRead, !drained_};
}

void ClientCall::TakeBuffered() {
  InputBuffer& in = connection_->in;
  const size_t size = std::min<uint64_t>(in.size(), targets_.left());
  targets_.CopyIn(in.View().substr(0, size), [this](size_t piece, MutableBytes part) {
    call_.observer->OnReceive(piece, part);
  });
  received_ += size;
  in.Consume(size);
}

}  // namespace mooncake::transfer

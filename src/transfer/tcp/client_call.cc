#include "transfer/tcp/client_call.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <utility>

#include "obs/log.h"
#include "transfer/tcp/auth.h"

namespace mooncake::transfer {

using Progress = ClientCall::Progress;

ClientContext::ClientContext(Runtime& runtime_in, const TcpOptions& options_in, Metrics* metrics)
    : runtime(runtime_in), options(options_in) {
  if (metrics == nullptr) return;
  for (bool write : {false, true}) {
    for (bool ok : {false, true}) {
      const Labels labels{{"direction", write ? "write" : "read"},
                          {"peer_kind", "tcp"},
                          {"result", ok ? "ok" : "error"}};
      bytes[write][ok] = &metrics->GetCounter("transport_bytes_total", labels);
      operations[write][ok] = &metrics->GetCounter("transport_operation_total", labels);
    }
  }
}

void ClientContext::CountBytes(bool write, bool ok, uint64_t size) {
  if (size == 0 || bytes[write][ok] == nullptr) return;
  bytes[write][ok]->Add(size);
  operations[write][ok]->Increment();
}

Progress ClientCall::Now() const {
  switch (phase_) {
    case Phase::kDone: return {Wait::kDone, false};
    case Phase::kConnect:
    case Phase::kSendHello:
    case Phase::kSendProof:
    case Phase::kSend: return {Wait::kWrite, false};
    default: return {Wait::kRead, false};
  }
}

Progress ClientCall::Start(uint64_t now_ms) {
  last_move_ms_ = now_ms;
  call_.status = Ok();
  call_.failure = CallFailure::kNone;
  phase_ = Phase::kSend;
  CheckLimits(now_ms, true);  // Closed already, or too late: nothing is sent.
  if (phase_ == Phase::kDone) return Now();
  connection_ = context_.pool.Take(call_.endpoint, now_ms);
  if (!connection_) return Connect(now_ms);
  reused_ = true;
  PrepareRequest();
  return {Wait::kWrite, true};
}

Progress ClientCall::Connect(uint64_t now_ms) {
  auto addresses = context_.pool.Resolve(call_.endpoint, now_ms);
  if (!addresses) return Finish(addresses.error(), CallFailure::kRefused);
  addresses_ = *std::move(addresses);
  next_address_ = 0;
  return ConnectNext(now_ms, 0);
}

// Starts to connect to the next address, or ends the call with `last_error`, an errno.
Progress ClientCall::ConnectNext(uint64_t now_ms, int last_error) {
  bool cleared = false;
  while (next_address_ < addresses_.size()) {
    int error = 0;
    UniqueFd fd = StartConnect(addresses_[next_address_], context_.options.buffer_bytes, error);
    if ((error == EMFILE || error == ENFILE) && !cleared) {
      context_.pool.Clear();  // Idle connections to others are worth less than this one.
      cleared = true;
      continue;
    }
    ++next_address_;
    last_error = error;
    if (error != 0) continue;
    connection_ = std::make_unique<Connection>();
    connection_->fd = std::move(fd);
    connect_until_ms_ = now_ms + context_.options.connect_ms;
    phase_ = Phase::kConnect;
    return Now();
  }
  CallFailure failure = CallFailure::kBroken;
  if (last_error == ECONNREFUSED && !sent_before_) failure = CallFailure::kRefused;
  call_.nobody_listens = last_error == ECONNREFUSED;
  if (last_error == ETIMEDOUT) failure = CallFailure::kStalled;
  if (last_error == EMFILE || last_error == ENFILE || last_error == EADDRNOTAVAIL ||
      last_error == ENOBUFS || last_error == ENOMEM) {
    failure = CallFailure::kLocal;
  }
  return Finish(TransportError(fmt::format("cannot connect to `{}`: {}", call_.endpoint,
                                           ErrnoText(last_error))),
                failure);
}

Progress ClientCall::FinishConnect(int flags) {
  pollfd entry = {fd(), POLLOUT, 0};
  const int ready = poll(&entry, 1, flags == 0 ? static_cast<int>(context_.options.slice_ms) : 0);
  if (ready <= 0) return Now();
  if (const int error = ConnectError(fd()); error != 0) {
    return ConnectNext(context_.runtime.NowMs(), error);
  }
  moved_ = true;
  MakeBlocking(fd(), context_.options.slice_ms);
  TuneSameHost(fd());
  if (context_.options.secret.empty()) {
    PrepareRequest();
    hello_pending_ = true;
  } else if (!FillNonce(hello_)) {
    return Finish(TransportError("the system has no random bytes"), CallFailure::kLocal);
  } else {
    head_size_ = text_sent_ = 0;
    AddHello();
    phase_ = Phase::kSendHello;
  }
  return {Wait::kWrite, true};
}

void ClientCall::AddHello() {
  hello_.flags = 0;
  if (!context_.options.secret.empty()) hello_.flags = kHelloHasSecret;
  std::memcpy(head_ + head_size_, &hello_, sizeof hello_);
  head_size_ += sizeof hello_;
}

void ClientCall::PrepareRequest() {
  FrameHeader header;
  header.type = call_.type;
  header.message_size = static_cast<uint32_t>(call_.message.size());
  header.request_id = ++connection_->requests;
  header.payload_size = TotalSize(call_.payload);
  if (call_.deadline_ms != 0) {
    const uint64_t now_ms = context_.runtime.NowMs();
    const uint64_t left_ms = call_.deadline_ms > now_ms ? call_.deadline_ms - now_ms : 1;
    header.time_left_ms = static_cast<uint32_t>(std::min<uint64_t>(left_ms, kTimeLeftMsMax));
  }
  head_size_ = text_sent_ = 0;
  if (connection_->requests == 1 && context_.options.secret.empty()) AddHello();
  std::memcpy(head_ + head_size_, &header, sizeof header);
  head_size_ += sizeof header;
  unsent_ = announced_ = PieceCursor<ConstBytes>(call_.payload);
  phase_ = Phase::kSend;
}

Progress ClientCall::Advance(int flags) {
  drained_ = false;
  switch (phase_) {
    case Phase::kConnect: return FinishConnect(flags);
    case Phase::kSendHello:
    case Phase::kSendProof: return AfterSend(SendText(flags));
    case Phase::kSend: return AfterSend(SendRequest(flags));
    case Phase::kAwaitHello:
    case Phase::kAwaitVerdict:
    case Phase::kAwaitReply: {
      const bool hello = phase_ == Phase::kAwaitHello || hello_pending_;
      const Io io = Fill(Wanted(), flags);
      if (io == Io::kAgain) return Now();
      if (io == Io::kEnded) return Broken("closed the connection without a reply");
      if (hello) return OnHello();
      return phase_ == Phase::kAwaitVerdict ? OnVerdict() : OnReplyHead();
    }
    case Phase::kReceive: {
      const Io io = ReceiveChunk(flags);
      if (io == Io::kEnded) return Broken("closed the connection within the reply");
      if (targets_.left() == 0) return Complete();
      return {Wait::kRead, io == Io::kDone && !drained_};
    }
    case Phase::kDone: break;
  }
  return Now();
}

// How much must be buffered for the next thing to be understood.
size_t ClientCall::Wanted() const {
  if (phase_ == Phase::kAwaitHello || hello_pending_) return sizeof(Hello);
  if (phase_ == Phase::kAwaitVerdict) return sizeof(Verdict);
  const std::string_view view = connection_->in.View();
  if (view.size() < sizeof(FrameHeader)) return sizeof(FrameHeader);
  const auto header = ReadWire<FrameHeader>(view);
  // What is not sane is refused by OnReplyHead; nothing more is read for it.
  return sizeof(FrameHeader) + (IsSane(header, true) ? header.message_size : 0);
}

Progress ClientCall::AfterSend(Io io) {
  if (io == Io::kAgain) return Now();
  if (io == Io::kHeldBack) return Finish(std::move(end_verdict_), CallFailure::kLocal);
  if (io == Io::kEnded) {
    if (!hello_pending_) return Broken(ErrnoText(send_error_));
    // The peer turned us away before it read everything; its hello says why.
    phase_ = Phase::kAwaitReply;
    return {Wait::kRead, true};
  }
  switch (phase_) {
    case Phase::kSendHello: phase_ = Phase::kAwaitHello; break;
    case Phase::kSendProof: phase_ = Phase::kAwaitVerdict; break;
    default:
      if (unsent_.left() > 0) return {Wait::kWrite, true};
      phase_ = Phase::kAwaitReply;
  }
  return Now();
}

Progress ClientCall::Finish(Status status, CallFailure failure) {
  context_.CountBytes(true, status.ok(), sent_);
  context_.CountBytes(false, status.ok(), received_);
  call_.status = std::move(status);
  call_.failure = failure;
  connection_.reset();
  phase_ = Phase::kDone;
  return Now();
}

// The connection ended. One that came from the pool may have died while it rested, so the call
// gets one fresh connection; requests carry their own identity against being served twice.
Progress ClientCall::Broken(std::string_view what) {
  if (!reused_) {
    return Finish(TransportError(fmt::format("peer `{}` {}", call_.endpoint, what)),
                  CallFailure::kBroken);
  }
  reused_ = false;
  sent_before_ = text_sent_ > 0;
  connection_.reset();
  context_.pool.Forget(call_.endpoint);  // Its siblings are most likely dead too.
  call_.observer->OnRestart();
  return Connect(context_.runtime.NowMs());
}

Progress ClientCall::Complete() {
  const bool clean = connection_->in.empty();
  if (clean) context_.pool.Put(call_.endpoint, std::move(connection_), context_.runtime.NowMs());
  return Finish(Ok(), CallFailure::kNone);
}

uint64_t ClientCall::LimitMs() const {
  uint64_t limit_ms = last_move_ms_ + context_.options.stall_ms;
  if (call_.deadline_ms != 0) limit_ms = std::min(limit_ms, call_.deadline_ms);
  if (phase_ == Phase::kConnect) limit_ms = std::min(limit_ms, connect_until_ms_);
  return limit_ms;
}

Progress ClientCall::CheckLimits(uint64_t now_ms, bool poll_interrupt) {
  if (phase_ == Phase::kDone) return Now();
  if (std::exchange(moved_, false)) last_move_ms_ = now_ms;
  if (context_.closed.load(std::memory_order_relaxed)) {
    return Finish(InvalidState("the transport is closed"), CallFailure::kLocal);
  }
  if (poll_interrupt && context_.runtime.Interrupted()) {
    return Finish(TransportError("interrupted"), CallFailure::kLocal);
  }
  if (call_.deadline_ms != 0 && now_ms >= call_.deadline_ms) {
    return Finish(
        TransportError(fmt::format("peer `{}` did not answer by the deadline", call_.endpoint)),
        CallFailure::kStalled);
  }
  if (now_ms >= last_move_ms_ + context_.options.stall_ms) {
    return Finish(TransportError(fmt::format("peer `{}` moved no byte for {} ms", call_.endpoint,
                                             context_.options.stall_ms)),
                  CallFailure::kStalled);
  }
  if (phase_ == Phase::kConnect && now_ms >= connect_until_ms_) {
    return ConnectNext(now_ms, ETIMEDOUT);
  }
  return Now();
}

}  // namespace mooncake::transfer

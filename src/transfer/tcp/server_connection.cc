#include "transfer/tcp/server_connection.h"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "obs/log.h"
#include "transfer/tcp/auth.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kDrainMs = 1'000;        // For a refused peer to read why.
constexpr uint64_t kIdleMemoryMs = 10'000;  // Then an idle connection keeps no buffer.
// What the head of a request and its message, of 32 MiB at most, may take, in stall limits.
constexpr uint64_t kHeadStallsMax = 6;

template <typename T>
void AppendWire(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

void ServerContext::Rejected(const char* reason) {
  if (metrics != nullptr) {
    metrics->GetCounter("transport_rejected_total", {{"reason", reason}}).Increment();
  }
  obs::LogRateLimited(obs::LogLevel::kWarning, "transport.rejected",
                      fmt::format("closed an accepted connection: {}", reason));
}

ServerConnection::ServerConnection(ServerContext& context, UniqueFd fd, uint64_t now_ms)
    : context_(context),
      fd_(std::move(fd)),
      now_ms_(now_ms),
      moved_ms_(now_ms),
      entered_ms_(now_ms) {}

ServerConnection::~ServerConnection() {
  context_.connections.fetch_sub(1, std::memory_order_relaxed);
}

auto ServerConnection::OnReady(uint64_t now_ms) -> Next {
  now_ms_ = now_ms;
  drained_ = false;
  turns_ = 0;
  // Ends: each step consumes input, of which a turn limits the amount, or waits.
  for (;;) {
    switch (StepOnce()) {
      case Step::kGo: break;
      case Step::kRead: return Next::kRead;
      case Step::kWrite: return Next::kWrite;
      case Step::kWorker: return Next::kWorker;
      case Step::kClose: return Next::kClose;
    }
  }
}

auto ServerConnection::StepOnce() -> Step {
  Io io = Io::kDone;
  switch (phase_) {
    case Phase::kHello:
      io = Fill(sizeof(Hello));
      if (io == Io::kDone) return OnHello();
      break;
    case Phase::kProof:
      io = Fill(kProofSize);
      if (io == Io::kDone) return OnProof();
      break;
    case Phase::kDrain: return Drain();
    case Phase::kHead:
      io = Fill(WantedHead());
      if (io == Io::kDone) return OnHead();
      break;
    case Phase::kPrepare:
      if (!call_->Prepare(false)) return Step::kWorker;
      BeginPayload();
      return Step::kGo;
    case Phase::kPayload:
      io = ReceivePayload();
      if (io == Io::kDone) phase_ = Phase::kRun;
      break;
    case Phase::kRun:
      if (!call_->Run(false, reply_)) return Step::kWorker;
      BeginReply();
      return Step::kGo;
    case Phase::kReply:
      io = SendReply();
      if (io == Io::kAgain) return Step::kWrite;
      if (io == Io::kEnded) return Step::kClose;
      EndCall();
      // The next request, if any came, is in the buffer; looking for one is the loop's job.
      return in_.empty() ? Step::kRead : Step::kGo;
    case Phase::kBroken: return Step::kClose;
  }
  if (io == Io::kDone) return Step::kGo;
  return io == Io::kAgain ? Step::kRead : Step::kClose;
}

auto ServerConnection::OnHello() -> Step {
  client_hello_ = ReadWire<Hello>(in_.View());
  in_.Consume(sizeof(Hello));
  if (client_hello_.magic != kHelloMagic) return Reject("no hello");
  const bool ours = !context_.options.secret.empty();
  const bool theirs = (client_hello_.flags & kHelloHasSecret) != 0;
  if (ours) server_hello_.flags = kHelloHasSecret;
  if (client_hello_.major != kProtocolMajor) {
    server_hello_.verdict = HelloVerdict::kVersion;
  } else if (ours != theirs) {
    server_hello_.verdict = HelloVerdict::kSecret;
  }
  if (ours && !FillNonce(server_hello_)) return Reject("no random bytes");
  AppendWire(out_, server_hello_);
  if (server_hello_.verdict == HelloVerdict::kVersion) return Refuse("protocol version differs");
  if (server_hello_.verdict == HelloVerdict::kSecret) return Refuse("cluster secret differs");
  if (!ours) {
    phase_ = Phase::kHead;  // The hello leaves together with the first reply.
    return Step::kGo;
  }
  if (SendReply() != Io::kDone) return Step::kClose;  // A new socket has room for it.
  phase_ = Phase::kProof;
  return Step::kGo;
}

auto ServerConnection::OnProof() -> Step {
  uint8_t proof[kProofSize], expected[kProofSize];
  in_.View().copy(reinterpret_cast<char*>(proof), kProofSize);
  in_.Consume(kProofSize);
  MakeProof(context_.options.secret, Prover::kClient, client_hello_, server_hello_, expected);
  Verdict verdict;
  const bool welcome = ProofsEqual(proof, expected);
  if (welcome) {
    MakeProof(context_.options.secret, Prover::kServer, client_hello_, server_hello_,
              verdict.proof);
  } else {
    verdict.verdict = HelloVerdict::kSecret;
  }
  AppendWire(out_, verdict);
  if (!welcome) return Refuse("cluster secret differs");
  if (SendReply() != Io::kDone) return Step::kClose;
  phase_ = Phase::kHead;
  return Step::kGo;
}

// Tells the peer (out_) and lets it read that: closing with unread input would reset it away.
auto ServerConnection::Refuse(const char* reason) -> Step {
  context_.Rejected(reason);
  if (SendReply() != Io::kDone) return Step::kClose;
  (void)::shutdown(fd(), SHUT_WR);
  phase_ = Phase::kDrain;
  entered_ms_ = now_ms_;
  return Step::kGo;
}

auto ServerConnection::Reject(const char* reason) -> Step {
  context_.Rejected(reason);
  return Step::kClose;
}

size_t ServerConnection::WantedHead() const {
  const std::string_view view = in_.View();
  if (view.size() < sizeof(FrameHeader)) return sizeof(FrameHeader);
  const auto header = ReadWire<FrameHeader>(view);
  // What is not sane is refused by OnHead; nothing more is read for it.
  return sizeof(FrameHeader) + (IsSane(header, false) ? header.message_size : 0);
}

auto ServerConnection::OnHead() -> Step {
  request_ = ReadWire<FrameHeader>(in_.View());
  if (!IsSane(request_, false)) return Reject("malformed frame");
  if (in_.size() < sizeof request_ + request_.message_size) return Step::kGo;
  const uint32_t left_ms =
      request_.time_left_ms == 0 ? kTimeLeftMsMax : std::min(request_.time_left_ms, kTimeLeftMsMax);
  deadline_ms_ = now_ms_ + left_ms;
  IncomingRequest incoming;
  incoming.type = request_.type;
  // Stays in place: nothing is received into in_ until the call has ended.
  incoming.message = in_.View().substr(sizeof request_, request_.message_size);
  incoming.payload_size = request_.payload_size;
  incoming.deadline_ms = deadline_ms_;
  call_ = context_.service->Accept(incoming);
  if (!call_) return Reject("request not accepted");
  asked_ = true;
  in_.Consume(sizeof request_ + request_.message_size);
  phase_ = Phase::kPrepare;
  return Step::kGo;
}

void ServerConnection::BeginPayload() {
  targets_ = PieceCursor<MutableBytes>(call_->PayloadTargets());
  if (targets_.left() != request_.payload_size) {
    context_.Rejected("payload size not accepted");
    phase_ = Phase::kBroken;
    return;
  }
  const size_t buffered = std::min<uint64_t>(in_.size(), targets_.left());
  targets_.CopyIn(in_.View().substr(0, buffered), [](size_t, MutableBytes) {});
  in_.Consume(buffered);
  phase_ = targets_.left() > 0 ? Phase::kPayload : Phase::kRun;
}

void ServerConnection::BeginReply() {
  FrameHeader header;
  header.type = request_.type;
  header.flags = kFrameReply;
  header.message_size = static_cast<uint32_t>(reply_.message.size());
  header.request_id = request_.request_id;
  header.payload_size = TotalSize(reply_.payload);
  if (reply_.message.size() > kMessageSizeMax) {
    context_.Rejected("reply too large");
    phase_ = Phase::kBroken;
    return;
  }
  AppendWire(out_, header);
  unsent_ = PieceCursor<ConstBytes>(reply_.payload);
  phase_ = Phase::kReply;
}

void ServerConnection::EndCall() {
  call_.reset();
  reply_ = Reply();
  phase_ = Phase::kHead;
  entered_ms_ = now_ms_;
  if (in_.empty()) in_.Trim(false);
}

void ServerConnection::RunBlocking() {
  turns_ = 0;
  if (phase_ == Phase::kPrepare) {
    (void)call_->Prepare(true);
    BeginPayload();
    return;
  }
  (void)call_->Run(true, reply_);
  BeginReply();
  if (phase_ != Phase::kReply) return;
  // From here rather than from the loop: one wake-up less until the caller has its answer.
  now_ms_ = context_.runtime.NowMs();
  const Io io = SendReply();
  if (io == Io::kDone) EndCall();
  if (io == Io::kEnded) phase_ = Phase::kBroken;
}

bool ServerConnection::Expired(uint64_t now_ms) {
  const TcpOptions& options = context_.options;
  const bool idle = phase_ == Phase::kHead && in_.empty();
  if (idle) {
    if (now_ms > moved_ms_ + kIdleMemoryMs) in_.Trim(true);
    // Who has something to ask sends it right behind the hello.
    return now_ms >
           moved_ms_ + (asked_ ? options.idle_ms : std::min(options.stall_ms, options.idle_ms));
  }
  if (phase_ == Phase::kDrain) return now_ms > entered_ms_ + kDrainMs;
  // A peer may not drag the handshake out either, however steadily it trickles.
  if (phase_ == Phase::kHello || phase_ == Phase::kProof) {
    return now_ms > entered_ms_ + options.stall_ms;
  }
  if (phase_ == Phase::kHead && now_ms > entered_ms_ + kHeadStallsMax * options.stall_ms)
    return true;
  // The asker has given up, or pretends to go on.
  const bool moving = phase_ == Phase::kPayload || phase_ == Phase::kReply;
  if (moving && now_ms > deadline_ms_) return true;
  return now_ms > moved_ms_ + options.stall_ms;
}

uint64_t ServerConnection::SilentSince() const {
  const bool idle = phase_ == Phase::kHead && in_.empty();
  const bool greets = phase_ == Phase::kHello || phase_ == Phase::kProof || phase_ == Phase::kDrain;
  return idle || greets ? std::max<uint64_t>(1, moved_ms_) : 0;
}

}  // namespace mooncake::transfer

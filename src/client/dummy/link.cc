#include "client/dummy/link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/dummy/proof.h"
#include "client/dummy/unary_call.h"
#include "obs/log.h"

namespace mooncake::client {

namespace {

constexpr uint64_t kRetryMs = 25;            // Between attempts of setup.
constexpr uint64_t kHelloMs = 2'000;         // Of one attempt.
constexpr uint64_t kReconnectMs = 100;       // Between attempts later.
constexpr uint64_t kSideTimeoutMs = 10'000;  // Of one exchange on the socket.
constexpr uint64_t kReadyWaitMs = 500;       // How long a call waits for a new session.
constexpr uint64_t kAwayWaitMs = 50;         // How long a call waits for the daemon's return.
constexpr uint64_t kPollMs = 100;            // Between looks for an interrupt.
constexpr uint64_t kSendMs = 500;            // Of a call, until another connection is tried.
constexpr uint64_t kNoConnectionMs = 9'000;  // How long a call looks for a connection.
constexpr uint64_t kLookAgainMs = 20;        // Between attempts to get one.

bool Final(ErrorCode code) {
  return code == ErrorCode::kInvalidState || code == ErrorCode::kInvalidArgument ||
         code == ErrorCode::kUnsupported;
}

std::string ScopeOf(const DummyConfig& config) {
  if (!config.worker_scope.empty()) return config.worker_scope;
  return config.keyspace.empty() ? "worker-1" : config.keyspace;
}

}  // namespace

Link::Link(const DummyConfig& config, Runtime& runtime, MappedMemory control)
    : config_(config),
      runtime_(runtime),
      control_(std::move(control)),
      pulse_(calls_, runtime),
      ready_(runtime.NewEvent()),
      wake_(runtime.NewEvent()) {
  for (uint32_t slot = kCallSlots; slot > 0; --slot) free_slots_.push_back(slot - 1);
}

Result<std::unique_ptr<Link>> Link::Connect(const DummyConfig& config, Runtime& runtime) {
  MC_TRY(MappedMemory control, MappedMemory::MapShared(kControlBytes, 0, true));
  auto link = std::make_unique<Link>(config, runtime, std::move(control));
  const uint64_t deadline_ms = runtime.NowMs() + config.connect_timeout_ms;
  Status status = link->SayHello(deadline_ms);
  while (!status.ok()) {
    const bool late = runtime.NowMs() + kRetryMs >= deadline_ms;
    if (Final(status.code()) || late || runtime.Interrupted()) return std::move(status).error();
    runtime.SleepMs(kRetryMs);
    // What the first attempt said stays: the last one may not have had the time to find out.
    Status again = link->SayHello(deadline_ms);
    if (again.ok() || Final(again.code())) status = std::move(again);
  }
  link->watch_ = runtime.Spawn("mc-dummy-watch", [raw = link.get()] { raw->Watch(); });
  return link;
}

Link::~Link() { Close(); }

void Link::Close() {
  if (stop_.exchange(true)) return;
  end_by_ms_.store(0);
  wake_->Set();
  if (watch_) watch_->Join();
  Lose();
}

template <typename Request, typename Reply>
Status Link::CallByAddress(std::string_view method, const Request& request, Reply* reply,
                           uint64_t deadline_ms) {
  const UnaryCall call{config_.server_address, method, request.SerializeAsString(), deadline_ms};
  MC_TRY(const std::string answer, call.Run(end_by_ms_, runtime_));
  if (reply->ParseFromString(answer)) return Ok();
  return TransportError(fmt::format("daemon {}: a malformed answer", config_.server_address));
}

Status Link::SayHello(uint64_t deadline_ms) {
  const uint64_t now_ms = runtime_.NowMs();
  const uint64_t limit_ms = std::min(kHelloMs, deadline_ms > now_ms ? deadline_ms - now_ms : 1);
  daemon_v1::HelloRequest request;
  request.set_version(kDaemonProtocolVersion);
  request.set_scope(ScopeOf(config_));
  request.set_pid(static_cast<uint64_t>(getpid()));
  if (!config_.cluster_secret.empty()) {
    daemon_v1::ChallengeReply challenge;
    MC_RETURN_IF_ERROR(CallByAddress("/mooncake.daemon.v1.StoreDaemon/Challenge",
                                     daemon_v1::ChallengeRequest(), &challenge, now_ms + limit_ms));
    request.set_nonce(challenge.nonce());
    request.set_proof(ProofOf(config_.cluster_secret, challenge.nonce()));
  }
  daemon_v1::HelloReply reply;
  MC_RETURN_IF_ERROR(
      CallByAddress("/mooncake.daemon.v1.StoreDaemon/Hello", request, &reply, now_ms + limit_ms));
  if (reply.code() != 0) {
    return Error{static_cast<ErrorCode>(reply.code()),
                 fmt::format("daemon {}: {}", config_.server_address, reply.error())};
  }
  MC_RETURN_IF_ERROR(ConnectSocket(reply, limit_ms));
  return RegisterAll();
}

Status Link::ConnectSocket(const daemon_v1::HelloReply& hello, uint64_t limit_ms) {
  const auto failed = [&](const std::string& why) {
    return TransportError(
        fmt::format("daemon {}: shared memory socket: {}", config_.server_address, why));
  };
  Result<Descriptor> socket = ConnectTo(hello.socket_path(), limit_ms);
  if (!socket) {
    return failed(socket.error().context +
                  "; the daemon has to be on this host, and its socket "
                  "folder visible here");
  }
  const std::optional<uid_t> peer = PeerUser(socket->get());
  if (!peer || *peer != geteuid()) {
    return failed(fmt::format("{} is served by another user", hello.socket_path()));
  }
  SetSocketTimeout(socket->get(), kSideTimeoutMs);
  {
    base::MutexLock lock(mu_);
    session_ = hello.session();
    node_ = hello.node();
    areas_.clear();
  }
  lease_ms_.store(hello.lease_ms());
  {
    base::MutexLock lock(socket_mu_);
    socket_ = *std::move(socket);
  }
  SideMessage attach;
  attach.type = SideType::kAttach;
  attach.size = kControlBytes;
  SideAnswer answer;
  const Result<Packet> answered = Ask(attach, control_.fd(), &answer);
  if (!answered) return failed(answered.error().context);
  calls_.Open({hello.socket_path(), hello.session().high(), hello.session().low()});
  return Ok();
}

Status Link::RegisterAll() {
  std::vector<std::pair<SideMessage, int>> messages;
  {
    base::MutexLock lock(mu_);
    for (const auto& [id, region] : regions_) {
      SideMessage& message = messages.emplace_back(SideMessage(), region.fd.get()).first;
      message.type = SideType::kRegister;
      message.id = id;
      message.size = region.size;
    }
  }
  for (const auto& [message, fd] : messages) {
    SideAnswer answer;
    const Result<Packet> answered = Ask(message, fd, &answer);
    if (!answered) return answered.error();
  }
  ready_->Set();
  return Ok();
}

Result<Packet> Link::Ask(SideMessage message, int fd, SideAnswer* answer) {
  {
    base::MutexLock lock(mu_);
    message.session_high = session_.high();
    message.session_low = session_.low();
  }
  base::MutexLock lock(socket_mu_);
  if (!socket_) return TransportError("the shared memory socket is not connected");
  Result<Packet> packet = Exchange(message, fd, answer);
  if (!packet) {
    socket_ = Descriptor();
    return packet;
  }
  if (answer->code != 0) {
    return Error{static_cast<ErrorCode>(answer->code),
                 std::string(answer->reason, strnlen(answer->reason, sizeof(answer->reason)))};
  }
  return packet;
}

Result<Packet> Link::Exchange(const SideMessage& message, int fd, SideAnswer* answer) {
  MC_RETURN_IF_ERROR(SendPacket(socket_.get(), BytesAt(&message, sizeof(message)), fd));
  MC_TRY(Packet packet, ReceivePacket(socket_.get(), MutableBytesAt(answer, sizeof(*answer))));
  if (packet.size == 0) return TransportError("the daemon closed the shared memory socket");
  if (packet.size != sizeof(*answer) || answer->magic != kSideMagic) {
    return TransportError("a malformed answer on the shared memory socket");
  }
  return packet;
}

bool Link::SocketBroken() {
  int fd = -1;
  {
    base::MutexLock lock(socket_mu_);
    fd = socket_.get();
  }
  if (fd < 0) return true;
  // The answers are read by those who asked; only the end of the connection shows here.
  pollfd look = {fd, POLLRDHUP, 0};
  return poll(&look, 1, 0) > 0 && look.revents != 0;
}

void Link::Lose() {
  ready_->Clear();
  calls_.Close();
  base::MutexLock lock(socket_mu_);
  socket_ = Descriptor();
}

void Link::Watch() {
  while (!stop_.load()) {
    wake_->WaitUntil(runtime_.NowMs() + kReconnectMs);
    wake_->Clear();
    if (stop_.load()) return;
    const bool good = ready_->WaitUntil(0);
    if (good && !SocketBroken()) continue;
    if (good) {
      obs::LogWarning(
          fmt::format("daemon {} is gone; waiting for it to come back", config_.server_address));
    }
    Lose();
    if (Status status = SayHello(runtime_.NowMs() + kHelloMs); !status.ok()) {
      Lose();
      obs::LogRateLimited(obs::LogLevel::kWarning, "dummy.reconnect", status.error().ToString());
      continue;
    }
    obs::LogInfo(fmt::format("connected to daemon {} again", config_.server_address));
  }
}

bool Link::WaitReady(uint64_t deadline_ms) {
  while (!stop_.load() && !runtime_.Interrupted()) {
    const uint64_t now_ms = runtime_.NowMs();
    if (ready_->WaitUntil(std::min(now_ms + kPollMs, deadline_ms))) return true;
    if (runtime_.NowMs() >= deadline_ms) return false;
  }
  return false;
}

bool Link::WaitToRetry(uint64_t give_up_ms) {
  if (runtime_.NowMs() >= give_up_ms || stop_.load() || runtime_.Interrupted()) return false;
  // It was restarted, perhaps: the thread that watches is to find out, and to say so.
  wake_->Set();
  runtime_.SleepMs(kLookAgainMs);
  return WaitReady(std::min(runtime_.NowMs() + kReadyWaitMs, give_up_ms));
}

template <typename Request, typename Reply>
Status Link::Invoke(CallType type, Request& request, Reply* reply, uint64_t deadline_ms,
                    Started started) {
  if (!started && request.ByteSizeLong() > kFrameBytesMax) {
    return InvalidArgument("too large a request; ask for fewer items");
  }
  const uint64_t start_ms = runtime_.NowMs();
  // While the daemon is away a call fails soon, though not in a busy loop of its caller's.
  if (!WaitReady(std::min(start_ms + kAwayWaitMs, deadline_ms))) {
    return TransportError(fmt::format("daemon {} is not reachable", config_.server_address));
  }
  while (!started) {
    started = Send(type, request, CallPool::Caller::kWaits, deadline_ms);
    if (started || WaitToRetry(std::min(start_ms + kNoConnectionMs, deadline_ms))) continue;
    wake_->Set();
    return TransportError(fmt::format("daemon {} takes no call now", config_.server_address));
  }
  reply->Clear();
  Status status = Finish(type, std::move(started), reply, deadline_ms);
  if (status.code() == ErrorCode::kTransport) wake_->Set();
  return status;
}

template <typename Request>
Link::Started Link::Send(CallType type, Request& request, CallPool::Caller caller,
                         uint64_t deadline_ms) {
  const uint64_t now_ms = runtime_.NowMs();
  Started call = calls_.Take(caller, deadline_ms > now_ms ? deadline_ms - now_ms : 0);
  if (!call) return call;
  request.clear_session();
  const int processor = std::max(sched_getcpu(), kAnyProcessor);
  const bool works_on = caller == CallPool::Caller::kWorksOn && processor >= 0;
  const bool packed = call->frame.Pack(type, works_on ? AwayFrom(processor) : processor, request);
  request.mutable_session()->set_high(call->session);
  if (!packed) {
    calls_.GiveBack(std::move(call));
    return {};
  }
  const uint64_t limit_ms = std::min(runtime_.NowMs() + kSendMs, deadline_ms);
  const auto give_up = [&](bool) {
    return stop_.load() || runtime_.Interrupted() || runtime_.NowMs() >= limit_ms;
  };
  if (!call->frame.Send(call->socket.get(), give_up).ok()) call.reset();
  return call;
}
template Link::Started Link::Send(CallType type, daemon_v1::AcquireRequest& request,
                                  CallPool::Caller caller, uint64_t deadline_ms);

template <typename Reply>
Status Link::Finish(CallType type, Started call, Reply* reply, uint64_t deadline_ms) {
  const uint64_t since_ms = runtime_.NowMs();
  const auto give_up = [&](bool) {
    if (stop_.load() || runtime_.Interrupted() || runtime_.NowMs() >= deadline_ms) return true;
    return pulse_.Gone(since_ms);
  };
  CallFrame& frame = call->frame;
  if (call->caller == CallPool::Caller::kWorksOn) (void)AwaitBriefly(call->socket.get());
  if (Status status = frame.Receive(call->socket.get(), give_up); !status.ok()) {
    return TransportError(
        fmt::format("daemon {}: {}", config_.server_address, status.error().context));
  }
  const int32_t code = frame.header().code;
  if (frame.header().type != type || (code == 0 && !frame.Unpack(reply))) {
    return TransportError(fmt::format("daemon {}: a malformed answer", config_.server_address));
  }
  Status status = Ok();
  if (code != 0) {
    status = Error{static_cast<ErrorCode>(code),
                   fmt::format("daemon {}: {}", config_.server_address, TextOf(frame.body()))};
  }
  calls_.GiveBack(std::move(call));
  return status;
}

Status Link::Put(daemon_v1::PutRequest& request, daemon_v1::CodesReply* reply) {
  return Invoke(CallType::kPut, request, reply, Deadline());
}
Status Link::Acquire(daemon_v1::AcquireRequest& request, daemon_v1::AcquireReply* reply,
                     uint64_t deadline_ms, Started started) {
  return Invoke(CallType::kAcquire, request, reply, deadline_ms, std::move(started));
}
Status Link::Exist(daemon_v1::KeysRequest& request, daemon_v1::CodesReply* reply) {
  return Invoke(CallType::kExist, request, reply, Deadline());
}
Status Link::Remove(daemon_v1::KeysRequest& request, daemon_v1::CodesReply* reply) {
  return Invoke(CallType::kRemove, request, reply, Deadline());
}
Status Link::Sizes(daemon_v1::KeysRequest& request, daemon_v1::SizesReply* reply) {
  return Invoke(CallType::kSizes, request, reply, Deadline());
}
Status Link::RemoveAll(daemon_v1::RemoveAllRequest& request, daemon_v1::RemoveAllReply* reply) {
  return Invoke(CallType::kRemoveAll, request, reply, Deadline());
}
Status Link::Metrics(daemon_v1::MetricsRequest& request, daemon_v1::MetricsReply* reply) {
  return Invoke(CallType::kMetrics, request, reply, Deadline());
}

Status Link::Health() {
  daemon_v1::HealthRequest request;
  daemon_v1::HealthReply reply;
  MC_RETURN_IF_ERROR(Invoke(CallType::kHealth, request, &reply, Deadline()));
  return reply.status() == 0 ? Ok() : Status(InvalidState("the daemon is not serving"));
}

Status Link::RegisterRegion(uint64_t id, int fd, uint64_t size) {
  Registration kept{Descriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)), size};
  if (!kept.fd) {
    return InvalidState(fmt::format("cannot keep the memory's descriptor: {}", strerror(errno)));
  }
  SideMessage message;
  message.type = SideType::kRegister;
  message.id = id;
  message.size = size;
  SideAnswer answer;
  const Result<Packet> answered = Ask(message, fd, &answer);
  if (!answered) return answered.error();
  base::MutexLock lock(mu_);
  regions_[id] = std::move(kept);
  return Ok();
}

void Link::UnregisterRegion(uint64_t id) {
  {
    base::MutexLock lock(mu_);
    if (regions_.erase(id) == 0) return;
  }
  SideMessage message;
  message.type = SideType::kUnregister;
  message.id = id;
  SideAnswer answer;
  // A daemon that is gone has no regions either.
  (void)Ask(message, -1, &answer);
}

std::shared_ptr<const MappedMemory> Link::KnownArea(uint64_t id, uint64_t session) {
  base::MutexLock lock(mu_);
  const auto found = areas_.find(id);
  return found == areas_.end() || session_.high() != session ? nullptr : found->second;
}

Result<std::shared_ptr<const MappedMemory>> Link::Area(uint64_t id, uint64_t session) {
  const auto gone = [] { return StaleEpoch("the daemon was restarted meanwhile"); };
  {
    base::MutexLock lock(mu_);
    if (session_.high() != session) return gone();
    if (auto found = areas_.find(id); found != areas_.end()) return found->second;
  }
  SideMessage message;
  message.type = SideType::kArea;
  message.id = id;
  SideAnswer answer;
  MC_TRY(Packet packet, Ask(message, -1, &answer));
  if (!packet.fd) return TransportError("the daemon sent no descriptor for an area");
  MC_TRY(MappedMemory memory, MappedMemory::MapDescriptor(packet.fd.Take(), answer.size, false));
  auto area = std::make_shared<const MappedMemory>(std::move(memory));
  base::MutexLock lock(mu_);
  if (session_.high() != session) return gone();  // Another area with the same number.
  if (id < kPassingAreas) areas_[id] = area;
  return area;
}

std::string Link::node() const {
  base::MutexLock lock(mu_);
  return node_;
}

Link::Mark::Mark(Link& link) : link_(link) {
  base::MutexLock lock(link.mu_);
  if (link.free_slots_.empty()) return;
  slot_ = link.free_slots_.back();
  link.free_slots_.pop_back();
  if (++link.next_sequence_ == 0) ++link.next_sequence_;
  sequence_ = link.next_sequence_;
  auto* words = reinterpret_cast<uint32_t*>(link.control_.bytes().data());
  std::atomic_ref<uint32_t>(words[slot_]).store(sequence_);
}

Link::Mark::~Mark() {
  if (sequence_ == 0) return;
  auto* words = reinterpret_cast<uint32_t*>(link_.control_.bytes().data());
  std::atomic_ref<uint32_t>(words[slot_]).store(0);
  base::MutexLock lock(link_.mu_);
  link_.free_slots_.push_back(slot_);
}

void Link::Mark::Fill(daemon_v1::CallMark* out) const {
  out->set_slot(slot_);
  out->set_sequence(sequence_);
}

}  // namespace mooncake::client

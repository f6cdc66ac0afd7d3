#include "daemon/side_server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "obs/log.h"

namespace mooncake::daemon {

using client::Descriptor;
using client::Packet;
using client::SideAnswer;
using client::SideMessage;
using client::SideType;

namespace {
constexpr int kLookMs = 200;              // Between looks whether to stop.
constexpr uint64_t kAttachMs = 5'000;     // A connection that says nothing is closed.
constexpr uint64_t kAnswerMs = 1'000;     // A client that does not read is closed.
constexpr uint64_t kNoDescriptorMs = 50;  // Before accepting again when there is none left.
constexpr size_t kParsedMax = 4 << 20;    // Bytes of frames, before a connection's messages go.

// Keeps a thread that serves calls on the processor of its client where that says that it stands
// still meanwhile: there it is woken at once and finds what the client has touched in the caches;
// elsewhere each way costs the wake-up of a processor that sleeps. Away from the processor of a
// client that works on while it waits: there the two would take turns, and there is where a thread
// is woken that nothing keeps away.
class NearClient {
 public:
  NearClient() : limited_(sched_getaffinity(0, sizeof(allowed_), &allowed_) == 0) {}
  // After a call that said so (CallHeader::code), for the next one. Never where the daemon may not
  // run.
  void Move(int32_t said) {
    const bool away = said < client::kAnyProcessor;
    const int32_t processor = away ? client::AwayFrom(said) : said;
    if (!limited_ || said == now_ || processor >= CPU_SETSIZE) return;
    now_ = said;
    cpu_set_t wanted = allowed_;
    if (processor >= 0 && CPU_ISSET(static_cast<size_t>(processor), &allowed_)) {
      if (!away) CPU_ZERO(&wanted);
      if (!away) CPU_SET(static_cast<size_t>(processor), &wanted);
      if (away && CPU_COUNT(&allowed_) > 1) CPU_CLR(static_cast<size_t>(processor), &wanted);
    }
    (void)sched_setaffinity(0, sizeof(wanted), &wanted);
  }

 private:
  cpu_set_t allowed_ = {};
  const bool limited_;  // allowed_ is known.
  int32_t now_ = client::kAnyProcessor;
};

// Looks for the next call of a client that copies while it asks, before the thread sleeps: waking
// a processor for it would hold up the client by a quarter of the time of copying 1 MiB. After
// each look in vain the next but one, two, four ... calls are looked for.
class NextCall {
 public:
  void Await(int socket) {
    if (left_out_ < leave_out_) {
      ++left_out_;
      return;
    }
    left_out_ = 0;
    const bool soon = client::AwaitBriefly(socket, kLooks);
    leave_out_ = soon ? 0 : std::min(std::max(1, 2 * leave_out_), kLeaveOutMax);
  }

 private:
  static constexpr int kLooks = 250;  // Of 0.2 us: most of the client's copy of 1 MiB.
  static constexpr int kLeaveOutMax = 64;
  int leave_out_ = 0;
  int left_out_ = 0;
};
}  // namespace

SideServer::SideServer(Runtime& runtime, Sessions& sessions, Calls& calls, AreaOf area_of)
    : runtime_(runtime), sessions_(sessions), calls_(calls), area_of_(std::move(area_of)) {}

SideServer::~SideServer() { Stop(); }

Status SideServer::Start(const std::string& folder, const std::string& address,
                         const std::string& scope) {
  MC_RETURN_IF_ERROR(client::MakeSocketFolder(folder));
  path_ = client::SocketPath(folder, address, scope);
  MC_TRY(listener_, client::ListenAt(&path_));
  thread_ = runtime_.Spawn("mc-side-accept", [this] { Accept(); });
  return Ok();
}

void SideServer::Stop() {
  if (stop_.exchange(true)) return;
  if (thread_) thread_->Join();
  for (const auto& connection : connections_) shutdown(connection->socket.get(), SHUT_RDWR);
  for (const auto& connection : connections_) connection->thread->Join();
  connections_.clear();
  if (listener_) unlink(path_.c_str());
  listener_ = Descriptor();
}

void SideServer::Accept() {
  while (!stop_.load()) {
    pollfd look = {listener_.get(), POLLIN, 0};
    const int ready = poll(&look, 1, kLookMs);
    Reap();
    sessions_.Sweep();
    if (ready <= 0) continue;
    Descriptor socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) {
      obs::LogRateLimited(obs::LogLevel::kWarning, "dummy.accept", strerror(errno));
      runtime_.SleepMs(kNoDescriptorMs);
      continue;
    }
    Admit(std::move(socket));
  }
}

void SideServer::Admit(Descriptor socket) {
  const std::optional<uid_t> user = client::PeerUser(socket.get());
  if (!user || *user != geteuid()) {
    sessions_.NoteRefused("user", fmt::format("a connection of user {} was refused",
                                              user ? std::to_string(*user) : "unknown"));
    return;
  }
  if (connections_.size() >= kConnectionsMax) {
    sessions_.NoteRefused("connections", "too many connections of dummy clients");
    return;
  }
  client::SetSocketTimeout(socket.get(), kAnswerMs);
  auto connection = std::make_unique<Connection>();
  connection->socket = std::move(socket);
  Connection& entry = *connections_.emplace_back(std::move(connection));
  entry.thread = runtime_.Spawn("mc-side", [this, &entry] { Serve(entry); });
}

void SideServer::Reap() {
  for (auto it = connections_.begin(); it != connections_.end();) {
    if ((*it)->done.load()) {
      (*it)->thread->Join();
      it = connections_.erase(it);
    } else {
      ++it;
    }
  }
}

void SideServer::Serve(Connection& connection) {
  const uint64_t attach_by_ms = runtime_.NowMs() + kAttachMs;
  const Descriptor process = client::PeerProcess(connection.socket.get());
  while (!stop_.load()) {
    pollfd look[] = {{connection.socket.get(), POLLIN, 0}, {process.get(), POLLIN, 0}};
    const int ready = poll(look, std::size(look), kLookMs);
    if ((ready < 0 && errno != EINTR) || look[1].revents != 0) break;
    if (ready <= 0) {
      if (connection.session || runtime_.NowMs() < attach_by_ms) continue;
      sessions_.NoteRefused("silent", "a connection that never attached was closed");
      break;
    }
    if (!ServeOne(connection) || connection.carries_calls) break;
  }
  if (connection.carries_calls) {
    ServeCalls(connection);
  } else if (connection.session) {
    sessions_.Remove(connection.session->id());
  }
  shutdown(connection.socket.get(), SHUT_RDWR);
  connection.done.store(true);
}

bool SideServer::ServeOne(Connection& connection) {
  SideMessage message;
  Result<Packet> packet =
      client::ReceivePacket(connection.socket.get(), MutableBytesAt(&message, sizeof(message)));
  if (packet.ok() && packet->size == 0) return false;  // Closed by the client.
  if (!packet.ok() || packet->size != sizeof(message) || message.magic != client::kSideMagic) {
    sessions_.NoteRefused("malformed", "a malformed message of a dummy client; closed");
    return false;
  }
  const SessionId id{message.session_high, message.session_low};
  if (message.type == SideType::kAttach) {
    return Attach(connection, message, std::move(packet->fd));
  }
  if (message.type == SideType::kCalls) return BeginCalls(connection, message);
  if (!connection.session || !(connection.session->id() == id)) {
    sessions_.NoteRefused("session", "a message with a foreign session; closed");
    return false;
  }
  if (message.type == SideType::kArea) return SendArea(connection, message.id);
  return Answer(connection, Handle(connection, message, std::move(packet->fd)), 0, -1);
}

bool SideServer::Attach(Connection& connection, const SideMessage& message, Descriptor fd) {
  SessionPtr session = sessions_.Find({message.session_high, message.session_low});
  const Status status = connection.session || !session
                            ? Status(StaleEpoch("no such session"))
                            : session->Attach(std::move(fd), message.size);
  if (!status.ok()) sessions_.NoteRefused("attach", status.error().context);
  if (status.ok()) connection.session = std::move(session);
  return Answer(connection, status, 0, -1) && status.ok();
}

bool SideServer::BeginCalls(Connection& connection, const SideMessage& message) {
  SessionPtr session = sessions_.Find({message.session_high, message.session_low});
  Status status;
  if (connection.session || !session || !session->attached()) {
    status = StaleEpoch("no such session");
  } else if (message.id != client::kCallVersion) {
    status = Unsupported(fmt::format("calls of version {}, this daemon speaks {}", message.id,
                                     client::kCallVersion));
  }
  if (!status.ok()) sessions_.NoteRefused("calls", status.error().context);
  connection.carries_calls = status.ok();
  if (status.ok()) connection.session = std::move(session);
  return Answer(connection, status, 0, -1) && status.ok();
}

void SideServer::ServeCalls(Connection& connection) {
  const Session& session = *connection.session;
  // A frame that stops coming halfway, or is not taken, ends the connection.
  const auto give_up = [&](bool begun) { return begun || stop_.load() || session.ended(); };
  auto messages = std::make_unique<Calls::Messages>();
  size_t parsed = 0;
  client::CallFrame frame;
  NearClient place;
  NextCall next;
  while (!stop_.load()) {
    const Status received = frame.Receive(connection.socket.get(), give_up);
    if (received.code() == ErrorCode::kInvalidArgument) {
      sessions_.NoteRefused("malformed", received.error().context);
    }
    if (!received.ok() || session.ended()) return;
    const int32_t caller = frame.header().code;
    parsed += frame.header().size;
    if (!ServeCall(connection, *messages, &frame)) return;
    parsed += frame.header().size;
    place.Move(caller);
    if (caller < client::kAnyProcessor) next.Await(connection.socket.get());
    // A message that is used again keeps the memory of the largest of each of its parts.
    if (parsed <= kParsedMax) continue;
    messages = std::make_unique<Calls::Messages>();
    parsed = 0;
  }
}

bool SideServer::ServeCall(Connection& connection, Calls::Messages& messages,
                           client::CallFrame* frame) {
  if (const Status status = calls_.Serve(*connection.session, messages, frame); !status.ok()) {
    sessions_.NoteRefused("malformed", status.error().context);
    return false;
  }
  const auto at_once = [](bool) { return true; };
  return frame->Send(connection.socket.get(), at_once).ok();
}

Status SideServer::Handle(Connection& connection, const SideMessage& message, Descriptor fd) {
  Status status = InvalidArgument("an unknown kind of message");
  if (message.type == SideType::kRegister) {
    status = connection.session->Register(message.id, std::move(fd), message.size);
  } else if (message.type == SideType::kUnregister) {
    status = connection.session->Unregister(message.id);
  }
  if (!status.ok()) sessions_.NoteRefused("register", status.error().context);
  return status;
}

bool SideServer::SendArea(Connection& connection, uint64_t area) {
  const std::shared_ptr<const MappedMemory> memory = area_of_(area);
  if (!memory || memory->fd() < 0) {
    sessions_.NoteRefused("area", fmt::format("there is no area {:#x}", area));
    return Answer(connection, NotFound("no such area"), 0, -1);
  }
  return Answer(connection, Ok(), memory->bytes().size(), memory->fd());
}

bool SideServer::Answer(Connection& connection, const Status& status, uint64_t size, int fd) {
  SideAnswer answer;
  answer.code = static_cast<int32_t>(status.code());
  answer.size = size;
  if (!status.ok()) {
    status.error().context.copy(answer.reason, sizeof(answer.reason) - 1);
  }
  return client::SendPacket(connection.socket.get(), BytesAt(&answer, sizeof(answer)), fd).ok();
}

}  // namespace mooncake::daemon

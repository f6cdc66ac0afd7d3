#include "client/dummy/call_pool.h"

#include <unistd.h>

#include <algorithm>

#include "client/dummy/side_channel.h"
#include "obs/log.h"

namespace mooncake::client {

namespace {
// Not longer: where this fails, a call still has to find out that the daemon stands still.
constexpr uint64_t kConnectMs = 500;  // To be connected, and for the answer to a hello.
constexpr uint64_t kLookMs = 100;     // Between looks whether to give up a call.
}  // namespace

void CallPool::Open(const Session& session) {
  Idle old;  // Closed after the lock.
  base::MutexLock lock(mu_);
  session_ = session;
  old.swap(idle_);
}

void CallPool::Close() {
  Idle old;
  base::MutexLock lock(mu_);
  session_.reset();
  old.swap(idle_);
}

std::unique_ptr<CallPool::Connection> CallPool::Take(Caller caller, uint64_t limit_ms) {
  Session session;
  {
    base::MutexLock lock(mu_);
    if (!session_) return nullptr;
    if (auto& idle = idle_[static_cast<size_t>(caller)]; !idle.empty()) {
      std::unique_ptr<Connection> connection = std::move(idle.back());
      idle.pop_back();
      return connection;
    }
    session = *session_;
  }
  Result<Descriptor> socket = Connect(session, std::min(kConnectMs, limit_ms / 2));
  if (!socket) {
    obs::LogRateLimited(obs::LogLevel::kWarning, "dummy.calls", socket.error().ToString());
    return nullptr;
  }
  auto connection = std::make_unique<Connection>();
  connection->caller = caller;
  connection->session = session.high;
  connection->socket = *std::move(socket);
  return connection;
}

void CallPool::GiveBack(std::unique_ptr<Connection> connection) {
  base::MutexLock lock(mu_);
  const bool current = session_ && session_->high == connection->session;
  auto& idle = idle_[static_cast<size_t>(connection->caller)];
  if (current && idle.size() < kIdleMax) idle.push_back(std::move(connection));
}

Result<Descriptor> CallPool::Connect(const Session& session, uint64_t step_ms) {
  MC_TRY(Descriptor socket, ConnectTo(session.socket_path, step_ms));
  const std::optional<uid_t> peer = PeerUser(socket.get());
  if (!peer || *peer != geteuid()) {
    return InvalidState(session.socket_path + " is served by another user");
  }
  SideMessage hello;
  hello.type = SideType::kCalls;
  hello.session_high = session.high;
  hello.session_low = session.low;
  hello.id = kCallVersion;
  MC_RETURN_IF_ERROR(SendPacket(socket.get(), BytesAt(&hello, sizeof(hello)), -1));
  SideAnswer answer;
  MC_TRY(const Packet packet, ReceivePacket(socket.get(), MutableBytesAt(&answer, sizeof(answer))));
  if (packet.size != sizeof(answer) || answer.magic != kSideMagic || answer.code != 0) {
    return TransportError("the daemon takes no connection for calls");
  }
  SetSocketTimeout(socket.get(), kLookMs);
  return socket;
}

}  // namespace mooncake::client

#include "transfer/tcp/event_loop.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "obs/log.h"

namespace mooncake::transfer {
namespace {

constexpr int kEventsMax = 64;
constexpr int kAcceptsMax = 16;  // At once, before connections get their turn.
constexpr uint64_t kAcceptPauseMs = 100;
constexpr uint64_t kRoomPauseMs = 10;  // For another loop to close a connection.
constexpr uint64_t kSweepMs = 1'000;

}  // namespace

EventLoop::EventLoop(ServerContext& context, WorkerPool& workers)
    : context_(context), workers_(workers) {}

EventLoop::~EventLoop() = default;

Status EventLoop::Open() {
  epoll_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  epoll_event event = {EPOLLIN, {.ptr = nullptr}};
  if (!epoll_.valid() || !wake_.valid() ||
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    return TransportError(fmt::format("no event loop: {}", ErrnoText(errno)));
  }
  return Ok();
}

Status EventLoop::Accept(UniqueFd listener, std::function<void(UniqueFd)> accepted,
                         std::function<void()> full) {
  listener_ = std::move(listener);
  accepted_ = std::move(accepted);
  full_ = std::move(full);
  epoll_event event = {EPOLLIN, {.ptr = this}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) != 0) {
    return TransportError(fmt::format("no event loop: {}", ErrnoText(errno)));
  }
  return Ok();
}

void EventLoop::Run() {
  std::array<epoll_event, kEventsMax> events;
  uint64_t now_ms = context_.runtime.NowMs();
  while (!stop_.load(std::memory_order_acquire)) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), kEventsMax, TimeoutMs(now_ms));
    now_ms = context_.runtime.NowMs();
    bool inbox = false;
    for (int i = 0; i < count; ++i) {
      void* const source = events[i].data.ptr;
      if (source == nullptr) {
        inbox = true;
      } else if (source == this) {
        AcceptSome(now_ms);
      } else {
        Handle(static_cast<ServerConnection*>(source), now_ms);
      }
    }
    // After the events: what this closes must not be among them.
    if (inbox) TakeInbox(now_ms);
    if (make_room_.exchange(false) || std::exchange(room_wanted_, false)) MakeRoom(now_ms);
    if (now_ms >= sweep_ms_) Sweep(now_ms);
  }
}

int EventLoop::TimeoutMs(uint64_t now_ms) const {
  if (connections_.empty() && accept_again_ms_ == 0 && !janitor_) return -1;
  return sweep_ms_ > now_ms ? static_cast<int>(sweep_ms_ - now_ms) : 0;
}

void EventLoop::Wake() {
  const uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);  // Full means that it is awake anyway.
}

void EventLoop::Adopt(UniqueFd fd) {
  {
    base::MutexLock lock(mu_);
    adopted_.push_back(std::move(fd));
  }
  Wake();
}

void EventLoop::Return(ServerConnection* connection) {
  {
    base::MutexLock lock(mu_);
    returned_.push_back(connection);
  }
  Wake();
}

void EventLoop::AskForRoom() {
  make_room_.store(true);
  Wake();
}

void EventLoop::Stop() {
  stop_.store(true, std::memory_order_release);
  Wake();
}

void EventLoop::TakeInbox(uint64_t now_ms) {
  uint64_t count;
  (void)!::read(wake_.get(), &count, sizeof count);
  std::vector<UniqueFd> adopted;
  std::vector<ServerConnection*> returned;
  {
    base::MutexLock lock(mu_);
    std::swap(adopted, adopted_);
    std::swap(returned, returned_);
  }
  for (UniqueFd& fd : adopted) {
    auto owned = std::make_unique<ServerConnection>(context_, std::move(fd), now_ms);
    ServerConnection* const connection = owned.get();
    connections_.emplace(connection, std::move(owned));
    // Its first bytes are most likely here already.
    Handle(connection, now_ms);
  }
  for (ServerConnection* connection : returned) {
    connection->lent = false;
    Handle(connection, now_ms);
  }
}

// Of this loop's connections; nullptr: none has been silent for long.
ServerConnection* EventLoop::LongestSilent(uint64_t now_ms) const {
  ServerConnection* longest = nullptr;
  uint64_t since_ms = now_ms - std::min(now_ms, context_.options.spare_ms);
  for (const auto& [connection, owned] : connections_) {
    const uint64_t silent_ms = connection->lent ? 0 : connection->SilentSince();
    if (silent_ms == 0 || silent_ms > since_ms) continue;
    since_ms = silent_ms;
    longest = connection;
  }
  return longest;
}

void EventLoop::MakeRoom(uint64_t now_ms) {
  ServerConnection* const silent = LongestSilent(now_ms);
  if (silent == nullptr) return;
  context_.Rejected("silent, and its place was needed");
  connections_.erase(silent);
}

// All places are taken. False: nobody gives one up, so who asks for one is to be turned away.
bool EventLoop::AwaitRoom(uint64_t now_ms) {
  if (LongestSilent(now_ms) != nullptr) {
    room_wanted_ = true;  // Not now: there may be an event of it. The listener stays readable.
    return true;
  }
  // Asked a moment ago, and nobody had any.
  if (now_ms < room_asked_ms_ + 2 * kRoomPauseMs) return false;
  room_asked_ms_ = now_ms;
  full_();
  PauseAccepting(now_ms, kRoomPauseMs);
  return true;
}

void EventLoop::AcceptSome(uint64_t now_ms) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    const bool full =
        context_.connections.load(std::memory_order_relaxed) >= context_.connections_max;
    if (full && AwaitRoom(now_ms)) return;
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      obs::LogRateLimited(obs::LogLevel::kError, "transport.accept",
                          fmt::format("cannot accept connections: {}", ErrnoText(errno)));
      PauseAccepting(now_ms, kAcceptPauseMs);
      return;
    }
    if (full) {
      context_.Rejected("too many connections");
      continue;
    }
    room_asked_ms_ = 0;  // There is some.
    context_.connections.fetch_add(1, std::memory_order_relaxed);
    TuneConnection(fd.get(), 0);  // The buffer sizes come from the listener.
    TuneSameHost(fd.get());
    accepted_(std::move(fd));
  }
}

// The waiting connection stays readable, so without a pause the loop spins.
void EventLoop::PauseAccepting(uint64_t now_ms, uint64_t pause_ms) {
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accept_again_ms_ = now_ms + pause_ms;
  sweep_ms_ = std::min(sweep_ms_, accept_again_ms_);
}

void EventLoop::Handle(ServerConnection* connection, uint64_t now_ms) {
  switch (connection->OnReady(now_ms)) {
    case ServerConnection::Next::kRead:
      if (Watch(connection, EPOLLIN)) return;
      break;
    case ServerConnection::Next::kWrite:
      if (Watch(connection, EPOLLOUT)) return;
      break;
    case ServerConnection::Next::kWorker:
      // Not watched meanwhile: an end that the peer makes would be reported without pause.
      Unwatch(connection);
      connection->lent = true;
      workers_.Submit(this, connection);
      return;
    case ServerConnection::Next::kClose: break;
  }
  connections_.erase(connection);  // Closing the descriptor removes it from epoll.
}

bool EventLoop::Watch(ServerConnection* connection, uint32_t events) {
  if (connection->registered_events == events) return true;
  const int operation = connection->registered_events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
  epoll_event event = {events, {.ptr = connection}};
  if (::epoll_ctl(epoll_.get(), operation, connection->fd(), &event) != 0) return false;
  connection->registered_events = events;
  return true;
}

void EventLoop::Unwatch(ServerConnection* connection) {
  if (connection->registered_events == 0) return;
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd(), nullptr);
  connection->registered_events = 0;
}

void EventLoop::Sweep(uint64_t now_ms) {
  const uint64_t limit_ms = std::min(context_.options.stall_ms, context_.options.idle_ms);
  sweep_ms_ = now_ms + std::clamp<uint64_t>(limit_ms / 4, 10, kSweepMs);
  if (accept_again_ms_ != 0 && now_ms >= accept_again_ms_) {
    epoll_event event = {EPOLLIN, {.ptr = this}};
    const bool added = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0;
    accept_again_ms_ = added ? 0 : now_ms + kAcceptPauseMs;
  }
  if (accept_again_ms_ != 0) sweep_ms_ = std::min(sweep_ms_, accept_again_ms_);
  std::erase_if(connections_, [now_ms](const auto& entry) {
    return !entry.first->lent && entry.first->Expired(now_ms);
  });
  if (janitor_) janitor_(now_ms);
}

}  // namespace mooncake::transfer

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

Status EventLoop::Accept(UniqueFd listener, std::function<void(UniqueFd)> accepted) {
  listener_ = std::move(listener);
  accepted_ = std::move(accepted);
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

void EventLoop::AcceptSome(uint64_t now_ms) {
  for (int i = 0; i < kAcceptsMax; ++i) {
    UniqueFd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!fd.valid()) {
      if (errno == ECONNABORTED || errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) PauseAccepting(now_ms, errno);
      return;
    }
    if (context_.connections.load(std::memory_order_relaxed) >= context_.options.connections_max) {
      context_.Rejected("too many connections");
      continue;
    }
    TuneConnection(fd.get(), 0);  // The buffer sizes come from the listener.
    TuneSameHost(fd.get());
    accepted_(std::move(fd));
  }
}

// Out of descriptors: the waiting connection stays readable, so without a pause the loop spins.
void EventLoop::PauseAccepting(uint64_t now_ms, int error) {
  obs::LogRateLimited(obs::LogLevel::kError, "transport.accept",
                      fmt::format("cannot accept connections: {}", ErrnoText(error)));
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_.get(), nullptr);
  accept_again_ms_ = now_ms + kAcceptPauseMs;
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

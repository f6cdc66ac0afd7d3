#include "transfer/tcp/pool.h"

#include <functional>
#include <iterator>
#include <utility>

namespace mooncake::transfer {
namespace {
constexpr uint64_t kSweepEveryMs = 5'000;
}  // namespace

std::unique_ptr<Connection> ConnectionPool::Pop(std::string_view endpoint) {
  base::MutexLock lock(mu_);
  auto it = peers_.find(endpoint);
  if (it == peers_.end() || it->second.idle.empty()) return nullptr;
  auto connection = std::move(it->second.idle.back());
  it->second.idle.pop_back();
  --idle_;
  return connection;
}

std::unique_ptr<Connection> ConnectionPool::Take(std::string_view endpoint, uint64_t now_ms) {
  for (size_t i = 0; i <= kIdlePerPeerMax; ++i) {
    auto connection = Pop(endpoint);
    if (!connection) return nullptr;
    const bool trusted = now_ms < connection->last_used_ms + kTrustedIdleMs;
    if (trusted || LooksAlive(connection->fd.get())) return connection;
  }
  return nullptr;
}

void ConnectionPool::Put(std::string_view endpoint, std::unique_ptr<Connection> connection,
                         uint64_t now_ms) {
  connection->last_used_ms = now_ms;
  if (connection->in.empty()) connection->in.Trim(false);
  {
    base::MutexLock lock(mu_);
    auto it = peers_.find(endpoint);
    if (it == peers_.end()) it = peers_.try_emplace(std::string(endpoint)).first;
    if (it->second.idle.size() < kIdlePerPeerMax && idle_ < kIdleMax) {
      it->second.idle.push_back(std::move(connection));
      ++idle_;
    }
  }
  Sweep(now_ms);
}

bool ConnectionPool::Fresh(const Peer& peer, uint64_t now_ms) {
  const uint64_t kept_ms = peer.addresses.ok() ? kAddressMs : kFailedAddressMs;
  return peer.resolved_ms != 0 && now_ms < peer.resolved_ms + kept_ms;
}

Result<std::vector<SocketAddress>> ConnectionPool::Resolve(std::string_view endpoint,
                                                           uint64_t now_ms) {
  {
    base::MutexLock lock(mu_);
    auto it = peers_.find(endpoint);
    if (it != peers_.end() && Fresh(it->second, now_ms)) return it->second.addresses;
  }
  auto addresses = ResolveEndpoint(endpoint);  // Without the lock: it may ask a name server.
  base::MutexLock lock(mu_);
  auto it = peers_.find(endpoint);
  if (it == peers_.end()) it = peers_.try_emplace(std::string(endpoint)).first;
  it->second.addresses = addresses;
  it->second.resolved_ms = now_ms + 1;  // Never 0.
  return addresses;
}

void ConnectionPool::Forget(std::string_view endpoint) {
  Peer forgotten;  // Closed after the lock.
  base::MutexLock lock(mu_);
  auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  idle_ -= it->second.idle.size();
  std::swap(forgotten, it->second);
  peers_.erase(it);
}

void ConnectionPool::Sweep(uint64_t now_ms) {
  std::vector<std::unique_ptr<Connection>> closed;  // After the lock.
  base::MutexLock lock(mu_);
  if (now_ms < swept_ms_ + kSweepEveryMs) return;
  swept_ms_ = now_ms;
  for (auto it = peers_.begin(); it != peers_.end();) {
    auto& idle = it->second.idle;
    size_t old = 0;
    while (old < idle.size() && now_ms >= idle[old]->last_used_ms + kIdleMs) ++old;
    const auto end = idle.begin() + static_cast<ptrdiff_t>(old);
    closed.insert(closed.end(), std::move_iterator(idle.begin()), std::move_iterator(end));
    idle.erase(idle.begin(), end);
    idle_ -= old;
    it = idle.empty() && !Fresh(it->second, now_ms) ? peers_.erase(it) : std::next(it);
  }
}

void ConnectionPool::Clear() {
  Peers closed;
  base::MutexLock lock(mu_);
  std::swap(closed, peers_);
  idle_ = 0;
}

}  // namespace mooncake::transfer

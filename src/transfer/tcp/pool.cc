#include "transfer/tcp/pool.h"

#include <poll.h>

#include <functional>
#include <utility>

namespace mooncake::transfer {
namespace {

using Connections = std::vector<std::unique_ptr<Connection>>;

// Moves those that are of no use any more to `closed`: too old, or there is something to read from
// the peer, which says nothing unasked but its end.
void TakeSpent(Connections& idle, uint64_t now_ms, Connections* closed) {
  std::vector<pollfd> entries;
  entries.reserve(idle.size());
  for (const auto& connection : idle) entries.push_back({connection->fd.get(), POLLIN, 0});
  // Should it fail, it says nothing about any of them, and the next sweep looks again.
  const bool looked = ::poll(entries.data(), entries.size(), 0) > 0;
  Connections kept;
  kept.reserve(idle.size());
  for (size_t i = 0; i < idle.size(); ++i) {
    const bool old = now_ms >= idle[i]->last_used_ms + ConnectionPool::kIdleMs;
    const bool ended = looked && entries[i].revents != 0;
    (old || ended ? *closed : kept).push_back(std::move(idle[i]));
  }
  std::swap(idle, kept);
}

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
  for (const std::string& endpoint : StartSweep(now_ms)) SweepPeer(endpoint, now_ms);
}

std::vector<std::string> ConnectionPool::StartSweep(uint64_t now_ms) {
  base::MutexLock lock(mu_);
  if (now_ms < swept_ms_ + kSweepEveryMs) return {};
  swept_ms_ = now_ms;
  std::vector<std::string> endpoints;
  endpoints.reserve(peers_.size());
  for (const auto& [endpoint, peer] : peers_) endpoints.push_back(endpoint);
  return endpoints;
}

// With the lock for one peer at a time: a call waits for a look at kIdlePerPeerMax at most.
void ConnectionPool::SweepPeer(std::string_view endpoint, uint64_t now_ms) {
  Connections closed;  // After the lock.
  base::MutexLock lock(mu_);
  const auto it = peers_.find(endpoint);
  if (it == peers_.end()) return;
  TakeSpent(it->second.idle, now_ms, &closed);
  idle_ -= closed.size();
  if (it->second.idle.empty() && !Fresh(it->second, now_ms)) peers_.erase(it);
}

void ConnectionPool::Clear() {
  Peers closed;
  base::MutexLock lock(mu_);
  std::swap(closed, peers_);
  idle_ = 0;
}

}  // namespace mooncake::transfer

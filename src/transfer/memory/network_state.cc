#include "transfer/memory/network_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>

namespace mooncake::transfer {
namespace {

// Between two looks at a condition that nobody announces: a pause, a call in use.
constexpr uint64_t kLookMs = 5;
constexpr double kRandomScale = 0x1.0p-53;

}  // namespace

NetworkState::~NetworkState() { WaitForThreads(); }

Result<std::string> NetworkState::AddNode(const std::string& host, uint16_t port,
                                          Service* service) {
  base::MutexLock lock(mu_);
  if (port == 0) {
    // Ends: there are fewer nodes than ports.
    while (nodes_.contains(fmt::format("{}:{}", host, next_port_))) ++next_port_;
    port = next_port_++;
  }
  std::string endpoint = fmt::format("{}:{}", host, port);
  auto [it, added] = nodes_.try_emplace(endpoint);
  if (!added) return InvalidArgument(fmt::format("cannot listen on {}: in use", endpoint));
  it->second.service = service;
  down_.erase(endpoint);
  return endpoint;
}

void NetworkState::RemoveNode(const std::string& endpoint) {
  std::vector<std::unique_ptr<ServerCall>> ended;  // Their destructors run without the lock.
  std::set<std::shared_ptr<Delivery>> in_use;
  {
    base::MutexLock lock(mu_);
    auto it = nodes_.find(endpoint);
    if (it == nodes_.end()) return;
    for (const auto& delivery : it->second.deliveries) {
      delivery->revoked = true;
      if (delivery->in_use) {
        in_use.insert(delivery);
      } else {
        ended.push_back(std::move(delivery->call));
      }
    }
    nodes_.erase(it);
  }
  ended.clear();
  // End destroys the call of a revoked delivery, before it stops to be in use.
  for (const auto& delivery : in_use) {
    for (bool used = true; used;) {
      runtime.SleepMs(kLookMs);
      base::MutexLock lock(mu_);
      used = delivery->in_use;
    }
  }
}

Link NetworkState::LinkBetween(const std::string& from, const std::string& to) {
  base::MutexLock lock(mu_);
  if (blocked_.contains({from, to})) return Link::kLost;
  auto group_of = [this](const std::string& endpoint) MC_REQUIRES(mu_) {
    return std::find_if(groups_.begin(), groups_.end(),
                        [&endpoint](const auto& group) { return group.contains(endpoint); });
  };
  const auto from_group = group_of(from), to_group = group_of(to);
  if (from_group != groups_.end() && to_group != groups_.end() && from_group != to_group) {
    return Link::kLost;
  }
  if (down_.contains(to) || (!nodes_.contains(to))) return Link::kRefused;
  return paused_.contains(to) || paused_.contains(from) ? Link::kPaused : Link::kUp;
}

NetworkFaults NetworkState::faults() {
  base::MutexLock lock(mu_);
  return faults_;
}

void NetworkState::SetFaults(const NetworkFaults& faults) {
  base::MutexLock lock(mu_);
  faults_ = faults;
}

void NetworkState::SetGroups(std::vector<std::set<std::string>> groups) {
  base::MutexLock lock(mu_);
  groups_ = std::move(groups);
}

void NetworkState::SetBlocked(const std::string& from, const std::string& to, bool blocked) {
  base::MutexLock lock(mu_);
  if (blocked) {
    blocked_.insert({from, to});
  } else {
    blocked_.erase({from, to});
  }
}

void NetworkState::SetDown(const std::string& endpoint, bool down) {
  base::MutexLock lock(mu_);
  if (down) {
    down_.insert(endpoint);
  } else {
    down_.erase(endpoint);
  }
}

void NetworkState::SetPaused(const std::string& endpoint, bool paused) {
  base::MutexLock lock(mu_);
  if (paused) {
    paused_.insert(endpoint);
  } else {
    paused_.erase(endpoint);
  }
}

void NetworkState::Heal() {
  base::MutexLock lock(mu_);
  faults_ = NetworkFaults();
  groups_.clear();
  blocked_.clear();
  paused_.clear();
}

bool NetworkState::Chance(double probability) {
  // Drawn only where a fault is possible, so that runs without faults are the same run.
  if (probability <= 0) return false;
  return static_cast<double>(runtime.Random() >> 11) * kRandomScale < probability;
}

uint64_t NetworkState::Between(uint64_t low, uint64_t high) {
  return high <= low ? low : low + runtime.Random() % (high - low + 1);
}

bool NetworkState::InSteps(uint64_t size, const std::function<bool(uint64_t, uint64_t)>& copy) {
  const uint64_t step = std::max<uint64_t>(1, faults().copy_step_bytes);
  for (uint64_t offset = 0; offset < size; offset += step) {
    if (offset > 0) runtime.Yield();
    if (!copy(offset, std::min(step, size - offset))) return false;
  }
  return true;
}

std::string NetworkState::AddRegion(MutableBytes range) {
  base::MutexLock lock(mu_);
  std::string token = fmt::format("memory-{}", next_token_++);
  regions_.emplace(token, range);
  return token;
}

void NetworkState::RemoveRegion(MutableBytes range, const std::set<std::string>& tokens) {
  base::MutexLock lock(mu_);
  for (auto it = regions_.begin(); it != regions_.end(); ++it) {
    if (it->second.data() == range.data() && it->second.size() == range.size() &&
        tokens.contains(it->first)) {
      regions_.erase(it);
      return;
    }
  }
}

void NetworkState::RemoveRegions(const std::set<std::string>& tokens) {
  base::MutexLock lock(mu_);
  for (const std::string& token : tokens) regions_.erase(token);
}

// Under the lock, so that a region is not unregistered while a step of a copy is in it.
Status NetworkState::CopyStep(RemoteAccess& access, uint64_t offset, uint64_t size) {
  base::MutexLock lock(mu_);
  auto it = regions_.find(access.token);
  if (it == regions_.end()) {
    return TransportError(fmt::format("no memory registered as `{}`", access.token));
  }
  const MutableBytes region = it->second;
  if (access.offset > region.size() || access.local.size() > region.size() - access.offset) {
    return InvalidArgument(fmt::format("{} bytes at {} are outside of `{}` ({} bytes)",
                                       access.local.size(), access.offset, access.token,
                                       region.size()));
  }
  std::byte* remote = region.data() + access.offset + offset;
  std::byte* local = access.local.data() + offset;
  std::memcpy(access.write ? remote : local, access.write ? local : remote, size);
  return Ok();
}

bool NetworkState::IsSilent(const std::string& from, const RemoteAccess& access) {
  const Link link = LinkBetween(from, std::string(access.endpoint));
  return link == Link::kLost || link == Link::kPaused;
}

Status NetworkState::Access(const std::string& from, RemoteAccess& access) {
  const std::string to(access.endpoint);
  if (LinkBetween(from, to) == Link::kRefused) {
    return TransportError(fmt::format("peer `{}` is gone", to));
  }
  if (access.local.empty()) return Ok();
  Status status;
  InSteps(access.local.size(), [&](uint64_t offset, uint64_t size) {
    if (LinkBetween(from, to) == Link::kRefused) {
      status = TransportError(fmt::format("peer `{}` is gone", to));
    } else {
      status = CopyStep(access, offset, size);
    }
    return status.ok();
  });
  return status;
}

}  // namespace mooncake::transfer

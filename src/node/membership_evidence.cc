// The half of Membership that tells who is well: what calls say of the peers, and whether this
// process itself stood still.
#include <fmt/format.h>

#include <algorithm>

#include "node/membership.h"
#include "obs/log.h"

namespace mooncake::node {

namespace {
constexpr size_t kSuspicionsMax = 4096;
constexpr uint64_t kPollsMissedMax = 3;  // Until what the service said is no longer news.
constexpr uint64_t kTickMs = 250;
// How long this process may stand still before its slots may have moved: half of the lease, as a
// third of it may have passed since the last heartbeat, and half of the stall limit after which
// peers by default report a silent node.
constexpr uint64_t kStillMinMs = 4 * kTickMs;
constexpr uint64_t kStillMaxMs = 5'000;
}  // namespace

void Membership::Suspect(const NodeId& id, bool gone) {
  if (view()->Find(id) == routing::kNoNode) return;  // It is out already.
  const uint64_t now_ms = runtime_.NowMs();
  base::MutexLock lock(mu_);
  if (id == record_.id || suspicions_.size() >= kSuspicionsMax) return;
  Suspicion& suspicion = suspicions_[id];
  if (suspicion.since_ms == 0) suspicion.since_ms = now_ms;
  if (now_ms >= suspicion.until_ms) suspicion.reported = false;
  suspicion.until_ms = now_ms + options_.quarantine_ms;
  suspicion.gone = gone;
  suspect_count_.store(static_cast<int>(suspicions_.size()));
  if (!suspicion.reported) refresh_->Set();
}

void Membership::Trust(const NodeId& id) {
  if (suspect_count_.load(std::memory_order_relaxed) == 0) return;
  base::MutexLock lock(mu_);
  suspicions_.erase(id);
  suspect_count_.store(static_cast<int>(suspicions_.size()));
}

bool Membership::KnownGone(const NodeId& id) const {
  base::MutexLock lock(mu_);
  const auto found = suspicions_.find(id);
  return found != suspicions_.end() && found->second.gone;
}

bool Membership::Suspected(const NodeId& id) const { return SuspectedForMs(id) > 0; }

uint64_t Membership::SuspectedForMs(const NodeId& id) const {
  if (suspect_count_.load(std::memory_order_relaxed) == 0) return 0;
  const uint64_t now_ms = runtime_.NowMs();
  base::MutexLock lock(mu_);
  auto found = suspicions_.find(id);
  if (found == suspicions_.end()) return 0;
  if (now_ms >= found->second.until_ms && !IsMarked(id, now_ms)) return 0;
  return now_ms - found->second.since_ms + 1;
}

// Whether the service says so, as of now: during an outage nobody can clear a mark.
bool Membership::IsMarked(const NodeId& id, uint64_t now_ms) const {
  if (now_ms >
      polled_ms_.load(std::memory_order_relaxed) + kPollsMissedMax * options_.poll_interval_ms) {
    return false;
  }
  const ViewPtr view = this->view();
  const routing::NodeIndex index = view->Find(id);
  return index != routing::kNoNode && view->node(index).lease.suspect;
}

void Membership::ReportSuspicions() {
  std::vector<NodeId> unreported;
  {
    base::MutexLock lock(mu_);
    const uint64_t now_ms = runtime_.NowMs();
    for (auto& [id, suspicion] : suspicions_) {
      if (suspicion.until_ms <= now_ms) continue;  // Old news by now.
      if (!std::exchange(suspicion.reported, true)) unreported.push_back(id);
    }
  }
  for (const NodeId& id : unreported) {
    obs::LogRateLimited(obs::LogLevel::kWarning, "membership.suspect",
                        fmt::format("node {} does not serve its data port", id.ToString()));
    if (metadata_.ReportSuspect(id).ok()) continue;
    base::MutexLock lock(mu_);
    if (auto found = suspicions_.find(id); found != suspicions_.end()) {
      found->second.reported = false;  // Again at the next poll.
    }
  }
}

// It was this node that others could not reach: what it took for silence says nothing of them.
void Membership::ForgetSuspicions() {
  base::MutexLock lock(mu_);
  suspicions_.clear();
  suspect_count_.store(0);
}

void Membership::NoteAbsences(const routing::ClusterView& view) {
  for (const routing::ViewNode& node : view.nodes()) {
    const LeaseRecord& lease = node.lease;
    if (lease.slot_bits == slots_.bits() || lease.state == NodeState::kOffline) continue;
    obs::LogRateLimited(obs::LogLevel::kError, "membership.slots",
                        fmt::format("{} has slot_bits={} and this node {}: they do not see each "
                                    "other's keys, see docs/operations.md",
                                    lease.id.ToString(), lease.slot_bits, slots_.bits()));
  }
  const auto note = [&](bool absent, std::atomic<uint64_t>* since_ms) {
    if (!absent) {
      since_ms->store(0);
    } else if (since_ms->load() == 0) {
      since_ms->store(std::max<uint64_t>(1, runtime_.NowMs()));
    }
  };
  const bool routed = std::any_of(view.nodes().begin(), view.nodes().end(),
                                  [](const routing::ViewNode& node) { return node.authority; });
  note(!routed, &nobody_routes_since_ms_);
  note(view.OnlySuspectsStore(options_.pool), &nobody_stores_since_ms_);
}

uint64_t Membership::AgeOf(const std::atomic<uint64_t>& since_ms) const {
  const uint64_t since = since_ms.load();
  return since == 0 ? 0 : runtime_.NowMs() - since + 1;
}

void Membership::TickLoop() {
  while (!stop_.load()) {
    tick_->WaitUntil(runtime_.NowMs() + kTickMs);
    if (TickIsLate()) stood_still_ms_.store(runtime_.NowMs());
    if (StandsStill()) {
      lease_was_lost_.store(true);
      reapply_.store(true);
      freezes_.fetch_add(1);
      refresh_->Set();
    }
    last_tick_ms_.store(runtime_.NowMs());
  }
}

bool Membership::TickIsLate() const {
  const uint64_t last_ms = last_tick_ms_.load(std::memory_order_relaxed);
  return last_ms != 0 && !stop_.load(std::memory_order_relaxed) &&
         runtime_.NowMs() > last_ms + kStillMinMs;
}

bool Membership::StoodStillSince(uint64_t since_ms) const {
  return TickIsLate() || stood_still_ms_.load(std::memory_order_relaxed) >= since_ms;
}

bool Membership::Frozen() const {
  return thawed_.load(std::memory_order_relaxed) != freezes_.load(std::memory_order_relaxed) ||
         StandsStill();
}

bool Membership::StandsStill() const {
  const uint64_t last_ms = last_tick_ms_.load(std::memory_order_relaxed);
  const uint64_t limit_ms = std::clamp(lease_ttl_ms() / 2, kStillMinMs, kStillMaxMs);
  return last_ms != 0 && !stop_.load(std::memory_order_relaxed) &&
         runtime_.NowMs() > last_ms + limit_ms;
}

void Membership::AwaitThaw(uint64_t deadline_ms) {
  if (Frozen()) RefreshTo(0, deadline_ms);
}

}  // namespace mooncake::node

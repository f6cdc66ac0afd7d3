#include "daemon/session.h"

#include <fmt/format.h>

#include "obs/log.h"

namespace mooncake::daemon {

Status Session::Attach(client::Descriptor control, uint64_t size) {
  if (size < client::kControlBytes) return InvalidArgument("the control page is too small");
  MC_TRY(MappedMemory memory,
         MappedMemory::MapDescriptor(control.Take(), client::kControlBytes, false));
  base::MutexLock lock(mu_);
  if (control_) return InvalidState("the session is attached already");
  control_ = std::make_shared<const MappedMemory>(std::move(memory));
  attached_.store(true);
  return Ok();
}

Status Session::Register(uint64_t id, client::Descriptor fd, uint64_t size) {
  if (id == 0) return InvalidArgument("region 0 cannot be registered");
  MC_TRY(MappedMemory memory, MappedMemory::MapDescriptor(fd.Take(), size, false));
  auto region = std::make_shared<const MappedMemory>(std::move(memory));
  base::MutexLock lock(mu_);
  if (regions_.size() >= kRegionsMax && !regions_.contains(id)) {
    return BackPressure(fmt::format("the client has {} regions, which is the most", kRegionsMax));
  }
  regions_[id].swap(region);
  return Ok();
}

Status Session::Unregister(uint64_t id) {
  RegionPtr gone;  // Unmapped after the lock.
  base::MutexLock lock(mu_);
  const auto found = regions_.find(id);
  if (found == regions_.end()) return NotFound("no such region");
  gone = std::move(found->second);
  regions_.erase(found);
  return Ok();
}

RegionPtr Session::Region(uint64_t id) const {
  base::MutexLock lock(mu_);
  const auto found = regions_.find(id);
  return found == regions_.end() ? nullptr : found->second;
}

std::function<bool()> Session::Watch(uint32_t slot, uint32_t sequence) const {
  base::MutexLock lock(mu_);
  if (!control_ || slot >= client::kCallSlots || sequence == 0) return {};
  return [control = control_, slot, sequence] {
    // What was read from the client's memory was read before this look at its page.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    auto* words = reinterpret_cast<uint32_t*>(control->bytes().data());
    return std::atomic_ref<uint32_t>(words[slot]).load() == sequence;
  };
}

uint64_t Session::Keep(Lease lease) {
  base::MutexLock lock(mu_);
  if (leases_.size() >= kLeasesMax) return 0;
  leases_.emplace(next_lease_, std::move(lease));
  return next_lease_++;
}

void Session::Drop(uint64_t lease) {
  Lease gone;  // Given back after the lock.
  base::MutexLock lock(mu_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return;
  gone = std::move(found->second);
  leases_.erase(found);
}

void Session::DropExpired(uint64_t now_ms) {
  std::vector<Lease> gone;
  base::MutexLock lock(mu_);
  for (auto it = leases_.begin(); it != leases_.end();) {
    if (it->second.expires_ms > now_ms) {
      ++it;
      continue;
    }
    gone.push_back(std::move(it->second));
    it = leases_.erase(it);
  }
}

Session::Sizes Session::sizes() const {
  base::MutexLock lock(mu_);
  Sizes sizes{regions_.size(), 0, leases_.size()};
  for (const auto& [id, region] : regions_) sizes.region_bytes += region->bytes().size();
  return sizes;
}

SessionPtr Sessions::Create(uint32_t domain, uint64_t pid) {
  const SessionId id{runtime_.Random(), runtime_.Random()};
  auto session = std::make_shared<Session>(id, domain, pid, runtime_.NowMs());
  base::MutexLock lock(mu_);
  if (by_id_.size() >= kSessionsMax) return nullptr;
  by_id_[id.high] = session;
  return session;
}

SessionPtr Sessions::Find(const SessionId& id) const {
  base::MutexLock lock(mu_);
  const auto found = by_id_.find(id.high);
  if (found == by_id_.end() || !(found->second->id() == id)) return nullptr;
  return found->second;
}

void Sessions::Remove(const SessionId& id) {
  SessionPtr gone;
  base::MutexLock lock(mu_);
  const auto found = by_id_.find(id.high);
  if (found == by_id_.end()) return;
  gone = std::move(found->second);
  by_id_.erase(found);
}

void Sessions::Sweep() {
  std::vector<SessionPtr> all;
  {
    base::MutexLock lock(mu_);
    for (const auto& [id, session] : by_id_) all.push_back(session);
  }
  const uint64_t now_ms = runtime_.NowMs();
  for (const SessionPtr& session : all) {
    session->DropExpired(now_ms);
    if (!session->attached() && now_ms > session->created_ms() + kAttachMs) {
      Remove(session->id());
    }
  }
}

void Sessions::RefreshGauges() {
  std::vector<SessionPtr> all;
  {
    base::MutexLock lock(mu_);
    for (const auto& [id, session] : by_id_) all.push_back(session);
  }
  Session::Sizes total;
  for (const SessionPtr& session : all) {
    const Session::Sizes sizes = session->sizes();
    total.regions += sizes.regions;
    total.region_bytes += sizes.region_bytes;
    total.leases += sizes.leases;
  }
  metrics_.GetGauge("dummy_clients", {}).Set(static_cast<double>(all.size()));
  metrics_.GetGauge("dummy_regions", {}).Set(static_cast<double>(total.regions));
  metrics_.GetGauge("dummy_region_bytes", {}).Set(static_cast<double>(total.region_bytes));
  metrics_.GetGauge("dummy_leases", {}).Set(static_cast<double>(total.leases));
}

uint64_t Sessions::count() const {
  base::MutexLock lock(mu_);
  return by_id_.size();
}

void Sessions::NoteRefused(const std::string& reason, const std::string& text) {
  metrics_.GetCounter("dummy_refused_total", {{"reason", reason}}).Increment();
  obs::LogRateLimited(obs::LogLevel::kWarning, "dummy.refused." + reason, text);
}

}  // namespace mooncake::daemon

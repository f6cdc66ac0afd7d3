#include "daemon/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

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

namespace {
// Whether the client's call is still going on. What was read from the client's memory before was
// read before this look at its page, and what is written after it is written later: that is all
// the order there has to be.
bool Lasts(const MappedMemory& control, uint32_t slot, uint32_t sequence) {
  std::atomic_thread_fence(std::memory_order_acquire);
  auto* words = reinterpret_cast<uint32_t*>(control.bytes().data());
  return std::atomic_ref<uint32_t>(words[slot]).load(std::memory_order_acquire) == sequence;
}
}  // namespace

std::function<bool()> Session::Watch(uint32_t slot, uint32_t sequence) const {
  base::MutexLock lock(mu_);
  if (!control_ || slot >= client::kCallSlots || sequence == 0) return {};
  return [control = control_, slot, sequence] { return Lasts(*control, slot, sequence); };
}

Status Session::Keep(Lease lease, uint32_t slot, uint32_t sequence) {
  base::MutexLock lock(mu_);
  if (!control_ || slot >= client::kCallSlots || sequence == 0) {
    return InvalidArgument("a call that reads needs a mark");
  }
  if (leases_.size() >= kLeasesMax) return BackPressure("too many leases are out");
  leases_.push_back({std::move(lease), slot, sequence});
  leases_out_.store(leases_.size());
  return Ok();
}

void Session::DropReleased(uint64_t now_ms) {
  if (leases_out_.load() == 0) return;
  std::vector<Kept> gone;  // Given back after the lock.
  base::MutexLock lock(mu_);
  const RegionPtr control = control_;
  const auto over = std::partition(leases_.begin(), leases_.end(), [&](const Kept& kept) {
    return kept.lease.expires_ms > now_ms && Lasts(*control, kept.slot, kept.sequence);
  });
  gone.assign(std::make_move_iterator(over), std::make_move_iterator(leases_.end()));
  leases_.erase(over, leases_.end());
  leases_out_.store(leases_.size());
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
  gone->End();
  by_id_.erase(found);
}

std::vector<SessionPtr> Sessions::All() const {
  std::vector<SessionPtr> all;
  base::MutexLock lock(mu_);
  all.reserve(by_id_.size());
  for (const auto& [id, session] : by_id_) all.push_back(session);
  return all;
}

void Sessions::DropReleased() {
  const uint64_t now_ms = runtime_.NowMs();
  for (const SessionPtr& session : All()) session->DropReleased(now_ms);
}

void Sessions::Sweep() {
  const uint64_t now_ms = runtime_.NowMs();
  for (const SessionPtr& session : All()) {
    session->DropReleased(now_ms);
    if (!session->attached() && now_ms > session->created_ms() + kAttachMs) {
      Remove(session->id());
    }
  }
}

void Sessions::RefreshGauges() {
  const std::vector<SessionPtr> all = All();
  const uint64_t now_ms = runtime_.NowMs();
  for (const SessionPtr& session : all) session->DropReleased(now_ms);
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

#include "node/tenant_meter.h"

#include <algorithm>
#include <utility>

#include "transfer/transport.h"

namespace mooncake::node {

namespace {

// What "no limit" counts as: far above every sum, far below an overflow.
constexpr uint64_t kUnlimited = uint64_t{1} << 62;

uint64_t Sum(uint64_t a, uint64_t b) { return a > UINT64_MAX - b ? UINT64_MAX : a + b; }

}  // namespace

Load Load::Plus(const Load& other) const {
  return {Sum(bytes, other.bytes), Sum(objects, other.objects)};
}

Load Load::Minus(const Load& other) const {
  return {bytes - std::min(bytes, other.bytes), objects - std::min(objects, other.objects)};
}

Load Load::AtMost(const Load& other) const {
  return {std::min(bytes, other.bytes), std::min(objects, other.objects)};
}

Load Load::AtLeast(const Load& other) const {
  return {std::max(bytes, other.bytes), std::max(objects, other.objects)};
}

Load LoadOf(uint64_t size, size_t copies) {
  return {std::min(size, kPayloadSizeMax) * copies, uint64_t{copies > 0}};
}

Charge& Charge::operator=(Charge&& other) noexcept {
  if (this == &other) return *this;
  Release();
  account_ = std::exchange(other.account_, nullptr);
  amount_ = other.amount_;
  return *this;
}

void Charge::Release() {
  if (account_ != nullptr) std::exchange(account_, nullptr)->Abort(amount_);
}

QuotaCounters::QuotaCounters(Metrics& metrics)
    : admitted(metrics.GetCounter("tenant_quota_reservation_total", {{"result", "ok"}})),
      refused(metrics.GetCounter("tenant_quota_reservation_total", {{"result", "conflict"}})),
      failed(metrics.GetCounter("tenant_quota_reservation_total", {{"result", "error"}})),
      finalized(metrics.GetCounter("tenant_quota_finalize_total", {{"result", "ok"}})),
      aborted(metrics.GetCounter("tenant_quota_abort_total", {{"result", "ok"}})),
      reconciled(metrics.GetCounter("tenant_quota_reconcile_total", {{"result", "ok"}})),
      unreconciled(metrics.GetCounter("tenant_quota_reconcile_total", {{"result", "error"}})),
      evicted(metrics.GetCounter("tenant_local_eviction_total", {{"result", "ok"}})) {}

void TenantAccount::SetLimit(const std::optional<Load>& limit, bool evicts) {
  base::MutexLock lock(mu_);
  evicts_.store(limit && evicts, std::memory_order_release);
  limit_ = limit;
  granted_ = LevelLocked();
  excess_ = granted_;
}

void TenantAccount::ShrinkLocked(const Load& less) {
  const Load gone = less.AtMost(excess_);
  excess_ = excess_.Minus(gone);
  granted_ = granted_.Minus(gone);
}

std::optional<Load> TenantAccount::limit() const {
  base::MutexLock lock(mu_);
  return limit_;
}

bool TenantAccount::TryCharge(const Load& growth, uint64_t now_ms, Charge* charge) {
  TakeLapsed(now_ms);
  {
    base::MutexLock lock(mu_);
    if (limit_ && !growth.GrowthWithin(granted_.Minus(LevelLocked()))) return false;
    pending_ = pending_.Plus(growth);
  }
  *charge = Charge(this, growth);  // Gives back what it held before, so without the lock.
  return true;
}

bool TenantAccount::Settle(Charge* charge, const Load& before, const Load& after) {
  base::MutexLock lock(mu_);
  const bool charged = charge != nullptr && charge->account_ == this;
  const Load paid = charged ? charge->amount_ : Load{};
  if (limit_ && !after.Minus(before).Minus(paid).GrowthWithin(granted_.Minus(LevelLocked()))) {
    return false;
  }
  used_ = used_.Minus(before).Plus(after);
  pending_ = pending_.Minus(paid);
  ShrinkLocked(before.Plus(paid).Minus(after));
  if (!charged) return true;
  charge->account_ = nullptr;
  counters_.finalized.Increment();
  return true;
}

void TenantAccount::Abort(const Load& amount) {
  base::MutexLock lock(mu_);
  pending_ = pending_.Minus(amount);
  ShrinkLocked(amount);
  counters_.aborted.Increment();
}

void TenantAccount::Raise(const Load& more) {
  base::MutexLock lock(mu_);
  used_ = used_.Plus(more);
}

void TenantAccount::Lower(const Load& less) {
  base::MutexLock lock(mu_);
  used_ = used_.Minus(less);
  ShrinkLocked(less);
}

bool TenantAccount::Keep(NameIndex writer, const KeyRef& ref, Charge charge, uint64_t until_ms) {
  base::MutexLock lock(mu_);
  if (kept_.size() >= kKeptMax) return false;
  kept_.emplace(ref.hash,
                Kept{writer, ref.scope, std::string(ref.key), std::move(charge), until_ms});
  next_lapse_ms_ = std::min(next_lapse_ms_, until_ms);
  return true;
}

Charge TenantAccount::Take(NameIndex writer, const KeyRef& ref) {
  base::MutexLock lock(mu_);
  auto [begin, end] = kept_.equal_range(ref.hash);
  for (auto it = begin; it != end; ++it) {
    Kept& kept = it->second;
    if (kept.writer != writer || kept.scope != ref.scope || kept.key != ref.key) continue;
    Charge charge = std::move(kept.charge);
    kept_.erase(it);
    return charge;
  }
  return {};
}

void TenantAccount::TakeLapsed(uint64_t now_ms) {
  std::vector<Charge> lapsed;  // Given back without the lock.
  base::MutexLock lock(mu_);
  if (now_ms < next_lapse_ms_) return;
  next_lapse_ms_ = UINT64_MAX;
  for (auto it = kept_.begin(); it != kept_.end();) {
    if (it->second.until_ms > now_ms) {
      next_lapse_ms_ = std::min(next_lapse_ms_, it->second.until_ms);
      ++it;
      continue;
    }
    lapsed.push_back(std::move(it->second.charge));
    it = kept_.erase(it);
  }
}

void TenantAccount::ForgetWriters(const std::function<bool(NameIndex)>& gone) {
  std::vector<Charge> theirs;  // Given back without the lock.
  base::MutexLock lock(mu_);
  for (auto it = kept_.begin(); it != kept_.end();) {
    if (!gone(it->second.writer)) {
      ++it;
      continue;
    }
    theirs.push_back(std::move(it->second.charge));
    it = kept_.erase(it);
  }
}

bool TenantAccount::BeginAsking() {
  base::MutexLock lock(mu_);
  return !std::exchange(asking_, true);
}

void TenantAccount::EndAsking() {
  base::MutexLock lock(mu_);
  asking_ = false;
}

uint64_t TenantAccount::BeginAttempt() {
  base::MutexLock lock(mu_);
  return attempt_ + 1;
}

void TenantAccount::EndAttempt(const Load& granted, uint64_t revision) {
  base::MutexLock lock(mu_);
  ++attempt_;
  if (revision < told_revision_) return;
  granted_ = granted_.Plus(granted);
  // There is something left to grant: what all nodes use together is within the quota.
  if (granted.bytes > 0) excess_.bytes = 0;
  if (granted.objects > 0) excess_.objects = 0;
}

Standing TenantAccount::Stand(bool give_back, uint64_t revision, uint64_t now_ms) {
  TakeLapsed(now_ms);
  base::MutexLock lock(mu_);
  const Load level = LevelLocked();
  excess_ = excess_.Plus(level.Minus(granted_)).AtMost(level);
  granted_ = give_back ? level : granted_.AtLeast(level);
  told_revision_ = std::max(told_revision_, revision);
  return {.revision = revision, .attempt = attempt_, .granted = granted_};
}

Load TenantAccount::Missing(const Load& growth) const {
  base::MutexLock lock(mu_);
  return growth.Minus(granted_.Minus(LevelLocked()));
}

TenantAccount::Amounts TenantAccount::amounts() const {
  base::MutexLock lock(mu_);
  return {used_, pending_, granted_};
}

TenantAccount* TenantMeter::Find(ScopeIndex scope) {
  if (!any()) return nullptr;
  Shard& shard = shards_[scope % kShards];
  {
    base::MutexLock lock(shard.mu);
    const auto found = shard.known.find(scope);
    if (found != shard.known.end()) return found->second;
  }
  const uint64_t generation = generation_.load();
  TenantAccount* account = FindTenant(scopes_.ScopeOf(scope).tenant);
  base::MutexLock lock(shard.mu);
  // An answer from before the last Install, which forgets what was known, is not kept.
  if (generation_.load() == generation) shard.known[scope] = account;
  return account;
}

TenantAccount* TenantMeter::FindTenant(const std::string& tenant) {
  base::MutexLock lock(mu_);
  const auto found = accounts_.find(tenant);
  return found == accounts_.end() ? nullptr : found->second.get();
}

void TenantMeter::Install(const Policies& policies) {
  bool changed = false;
  {
    base::MutexLock lock(mu_);
    for (const auto& [tenant, known] : policies) {
      const TenantPolicy& policy = known.record.policy;
      std::optional<Load> limit;
      if (!known.removed && (policy.max_bytes || policy.max_objects)) {
        limit = {policy.max_bytes.value_or(kUnlimited), policy.max_objects.value_or(kUnlimited)};
        limit = limit->AtMost({kUnlimited, kUnlimited});
      }
      std::unique_ptr<TenantAccount>& account = accounts_[tenant];
      if (account == nullptr) {
        if (!limit) {
          accounts_.erase(tenant);
          continue;
        }
        account = std::make_unique<TenantAccount>(tenant, counters_);
      }
      const bool evicts = limit && policy.evict_within_tenant;
      if (account->limit() == limit && account->evicts() == evicts) continue;
      account->SetLimit(limit, evicts);
      changed = true;
    }
    for (const auto& [tenant, account] : accounts_) {
      if (policies.contains(tenant) || !account->limit()) continue;
      account->SetLimit(std::nullopt);
      changed = true;
    }
  }
  if (!changed) return;
  any_.store(true, std::memory_order_release);
  generation_.fetch_add(1);
  for (Shard& shard : shards_) {
    base::MutexLock lock(shard.mu);
    std::erase_if(shard.known, [](const auto& entry) { return entry.second == nullptr; });
  }
}

uint64_t TenantMeter::BeginCount() {
  base::MutexLock lock(count_mu_);
  revision_.store(0, std::memory_order_release);
  return changes_.fetch_add(1, std::memory_order_acq_rel) + 1;
}

void TenantMeter::EndCount(uint64_t begun, uint64_t revision) {
  base::MutexLock lock(count_mu_);
  if (changes_.load(std::memory_order_relaxed) != begun) return;
  revision_.store(revision, std::memory_order_release);
  changes_.fetch_add(1, std::memory_order_acq_rel);
}

Standing TenantMeter::Stand(TenantAccount* account, bool give_back, uint64_t now_ms) {
  const uint64_t changes = changes_.load(std::memory_order_acquire);
  const uint64_t revision = this->revision();
  Standing standing;
  if (account != nullptr) standing = account->Stand(give_back, revision, now_ms);
  // A view that was applied meanwhile has moved keys: the sum is of no view at all.
  standing.revision = changes_.load(std::memory_order_acquire) == changes ? revision : 0;
  return standing;
}

void TenantMeter::ForgetWriters(const std::function<bool(NameIndex)>& gone) {
  if (!any()) return;
  std::vector<TenantAccount*> accounts;
  {
    base::MutexLock lock(mu_);
    for (const auto& [tenant, account] : accounts_) accounts.push_back(account.get());
  }
  for (TenantAccount* account : accounts) account->ForgetWriters(gone);
}

}  // namespace mooncake::node

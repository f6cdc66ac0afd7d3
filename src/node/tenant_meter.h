// TenantMeter: what tenants with a quota use, as far as this node answers for their keys, and how
// much of each quota this node may use by itself. ADR 18 has the whole; node/quota.h asks for more.
//
//   used     the routes that this node serves (bytes of a value times its replicas; one object)
//   pending  admitted and not published yet: a Charge each
//   granted  what the tenant's ledger lets this node reach. Growth is admitted while
//            used + pending stay within it. Takeovers may lift `used` above it.
//
// Tenants that never had a quota have no account, and cost the look whether anybody has one.
// Thread-safe. Calls no port.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "metadata/tenant_policy.h"
#include "node/age_index.h"
#include "node/types.h"
#include "obs/metrics.h"

namespace mooncake::node {

// An amount in both units of a quota.
struct Load {
  uint64_t bytes = 0;
  uint64_t objects = 0;

  // Sums and differences stop at the ends.
  Load Plus(const Load& other) const;
  Load Minus(const Load& other) const;
  Load AtMost(const Load& other) const;
  Load AtLeast(const Load& other) const;
  // Whether it is no more than `other` in every unit.
  bool Within(const Load& other) const { return bytes <= other.bytes && objects <= other.objects; }
  // The same, where only what grows at all has to.
  bool GrowthWithin(const Load& room) const {
    return (bytes == 0 || bytes <= room.bytes) && (objects == 0 || objects <= room.objects);
  }
  bool empty() const { return bytes == 0 && objects == 0; }
  bool operator==(const Load&) const = default;
};

// Of one value. Sizes that no frame carries count as the largest that one does.
Load LoadOf(uint64_t size, size_t copies);

class TenantAccount;

// An admitted growth that is not published yet. Given back when it goes, unless it was settled.
class Charge {
 public:
  Charge() = default;
  Charge(TenantAccount* account, Load amount) : account_(account), amount_(amount) {}
  Charge(Charge&& other) noexcept { *this = std::move(other); }
  Charge& operator=(Charge&& other) noexcept;
  ~Charge() { Release(); }
  void Release();
  TenantAccount* account() const { return account_; }
  const Load& amount() const { return amount_; }
  explicit operator bool() const { return account_ != nullptr; }

 private:
  friend class TenantAccount;
  TenantAccount* account_ = nullptr;
  Load amount_;
};

// How much this node uses of one tenant's quota, as its ledger has to know it.
struct Standing {
  std::string node;
  uint64_t revision = 0;  // Of the view by which it counts all that it answers for; 0: none.
  uint64_t attempt = 0;   // Of its last request for more; what that brought is in `granted`.
  Load granted;
};

struct QuotaCounters {
  explicit QuotaCounters(Metrics& metrics);
  Counter& admitted;
  Counter& refused;
  Counter& failed;  // It could not be found out whether there is room.
  Counter& finalized;
  Counter& aborted;
  Counter& reconciled;
  Counter& unreconciled;
  Counter& evicted;  // Values that made room for others of their tenant.
};

class TenantAccount {
 public:
  TenantAccount(std::string tenant, QuotaCounters& counters)
      : tenant_(std::move(tenant)), counters_(counters) {}
  const std::string& tenant() const { return tenant_; }

  // A new policy: what is unused of the grant is gone, the ledger knows the new limit.
  void SetLimit(const std::optional<Load>& limit, bool evicts = false);
  // No value: there is none, everything is admitted.
  std::optional<Load> limit() const;
  // Whether the tenant's oldest values make room for its puts. Only then are ages known.
  bool evicts() const { return evicts_.load(std::memory_order_acquire); }
  AgeIndex& ages() { return ages_; }

  // Admits a growth within the grant. Growth of nothing is always admitted.
  bool TryCharge(const Load& growth, uint64_t now_ms, Charge* charge);
  // A publication: `before` becomes `after`, and the charge, if any, is used up. False, and nothing
  // happens: it grows by more than was charged for, and the grant has no room for that.
  bool Settle(Charge* charge, const Load& before, const Load& after);
  void Abort(const Load& amount);
  // What is served changes without a publication.
  void Raise(const Load& more);
  void Lower(const Load& less);

  // Charges of writers that place their copies before they publish, until then or until `limit_ms`
  // has passed. False: too many.
  bool Keep(NameIndex writer, const KeyRef& ref, Charge charge, uint64_t until_ms);
  Charge Take(NameIndex writer, const KeyRef& ref);
  void ForgetWriters(const std::function<bool(NameIndex)>& gone);

  // One caller asks the ledger for more at a time. False: another one does.
  bool BeginAsking();
  void EndAsking();
  // Each of its questions has a number. `granted` by it, by the view of `revision`: void when this
  // node has told how it stands by a newer one since, as that one's ledger does not know of it.
  uint64_t BeginAttempt();
  void EndAttempt(const Load& granted, uint64_t revision);
  // The standing as of now. `give_back`: keeps no more of the grant than is used. A node that uses
  // more than was granted (it has taken keys over) is granted that by saying so.
  Standing Stand(bool give_back, uint64_t revision, uint64_t now_ms);
  // By how much a growth is over what the grant has room for.
  Load Missing(const Load& growth) const;

  struct Amounts {
    Load used;
    Load pending;
    Load granted;
  };
  Amounts amounts() const;

 private:
  struct Kept {
    NameIndex writer = 0;
    ScopeIndex scope = 0;
    std::string key;
    Charge charge;
    uint64_t until_ms = 0;
  };
  static constexpr size_t kKeptMax = 65'536;
  Load LevelLocked() const MC_REQUIRES(mu_) { return used_.Plus(pending_); }
  // What goes leaves no room that nobody has granted.
  void ShrinkLocked(const Load& less) MC_REQUIRES(mu_);
  // Gives back the kept charges that are over. REQUIRES: the lock is not held.
  void TakeLapsed(uint64_t now_ms);

  const std::string tenant_;
  QuotaCounters& counters_;
  std::atomic<bool> evicts_{false};
  AgeIndex ages_;
  mutable base::Mutex mu_;
  std::optional<Load> limit_ MC_GUARDED_BY(mu_);
  Load used_ MC_GUARDED_BY(mu_);
  Load pending_ MC_GUARDED_BY(mu_);
  Load granted_ MC_GUARDED_BY(mu_);
  // The part of it that this node has given itself, as it was using that: keys that it took over or
  // that were there before the quota. The sum of all nodes may be above the quota by it.
  Load excess_ MC_GUARDED_BY(mu_);
  uint64_t attempt_ MC_GUARDED_BY(mu_) = 0;  // The last one that has ended.
  uint64_t told_revision_ MC_GUARDED_BY(mu_) = 0;
  bool asking_ MC_GUARDED_BY(mu_) = false;
  std::unordered_multimap<uint64_t, Kept> kept_ MC_GUARDED_BY(mu_);  // By the key's hash.
  uint64_t next_lapse_ms_ MC_GUARDED_BY(mu_) = UINT64_MAX;           // A lower bound.
};

class TenantMeter {
 public:
  TenantMeter(ScopeTable& scopes, Metrics& metrics) : scopes_(scopes), counters_(metrics) {}

  // Whether any tenant has, or had, a quota.
  bool any() const { return any_.load(std::memory_order_acquire); }
  // nullptr: the scope's tenant never had one. Accounts live as long as the meter.
  TenantAccount* Find(ScopeIndex scope);
  TenantAccount* FindTenant(const std::string& tenant);

  using Policies = std::map<std::string, metadata::KnownPolicy>;  // By tenant.
  // The routes are to be counted anew after this.
  void Install(const Policies& policies);
  void ForgetWriters(const std::function<bool(NameIndex)>& gone);

  // The revision of the view by which the accounts count all keys that this node answers for; 0
  // while a view is being applied, or another node has asked for keys by a newer one.
  uint64_t revision() const { return revision_.load(std::memory_order_acquire); }
  // From here on it is 0. The end of a count gives it `revision`, unless another one has begun
  // since or keys were asked for: `begun` is what the beginning returned.
  uint64_t BeginCount();
  void EndCount(uint64_t begun, uint64_t revision);
  // How this node stands. `account`: nullptr, it counts nothing of the tenant.
  Standing Stand(TenantAccount* account, bool give_back, uint64_t now_ms);

  QuotaCounters& counters() { return counters_; }

 private:
  static constexpr size_t kShards = 16;
  struct Shard {
    base::Mutex mu;
    std::unordered_map<ScopeIndex, TenantAccount*> known MC_GUARDED_BY(mu);
  };

  ScopeTable& scopes_;
  QuotaCounters counters_;
  std::atomic<bool> any_{false};
  base::Mutex count_mu_;  // Of who writes the next two.
  std::atomic<uint64_t> revision_{0};
  std::atomic<uint64_t> changes_{0};     // Of the revision.
  std::atomic<uint64_t> generation_{0};  // Of the set of accounts.
  Shard shards_[kShards];
  mutable base::Mutex mu_;
  std::map<std::string, std::unique_ptr<TenantAccount>> accounts_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::node

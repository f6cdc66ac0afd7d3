// The part of RouteTable that counts what tenants with a quota have.
#include <utility>

#include "node/route_table.h"

namespace mooncake::node {

using routing::Slot;

Load RouteTable::LoadOf(const Entry& entry) {
  return node::LoadOf(entry.route.size, entry.route.replicas.size() + (entry.local ? 1 : 0));
}

Age RouteTable::AgeOf(uint64_t hash, const Entry& entry) {
  const uint64_t term_ms = entry.route.version >> kTermBits;
  const uint64_t published_ms = entry.published_ms != 0 ? entry.published_ms : term_ms;
  return {entry.route.soft_pin, published_ms, entry.route.version, hash};
}

void RouteTable::NoteAge(uint64_t hash, const Entry& entry, bool aged) {
  if (entry.account == nullptr || entry.aged == aged) return;
  entry.aged = aged;
  AgeIndex& ages = entry.account->ages();
  aged ? ages.Add(AgeOf(hash, entry)) : ages.Remove(AgeOf(hash, entry));
}

bool RouteTable::Settle(TenantAccount& account, Charge* charge, uint64_t hash, const Entry* before,
                        const Publication& publication) {
  const bool counted = before != nullptr && before->account == &account;
  const size_t copies = publication.remote.size() + (publication.local ? 1 : 0);
  if (!account.Settle(charge, counted ? LoadOf(*before) : Load{},
                      node::LoadOf(publication.size, copies))) {
    return false;
  }
  if (!counted) return true;
  NoteAge(hash, *before, false);
  before->account = nullptr;
  return true;
}

void RouteTable::Uncount(uint64_t hash, const Entry& entry) {
  if (entry.account == nullptr) return;
  NoteAge(hash, entry, false);
  std::exchange(entry.account, nullptr)->Lower(LoadOf(entry));
}

void RouteTable::CountLess(const Entry& entry, const Load& before) {
  if (entry.account != nullptr) entry.account->Lower(before.Minus(LoadOf(entry)));
}

void RouteTable::Recount() {
  if (meter_ == nullptr || !meter_->any()) return;
  for (size_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    for (auto& [hash, entry] : shard.entries) {
      const bool served = InfoOf(shard, slots_.Of(hash)).state == SlotState::kServing;
      TenantAccount* account = served ? meter_->Find(entry.scope) : nullptr;
      if (entry.account != account) {
        Uncount(hash, entry);
        entry.account = account;
        if (account != nullptr) account->Raise(LoadOf(entry));
      }
      NoteAge(hash, entry, account != nullptr && account->evicts());
    }
  }
}

RouteTable::Entries::iterator RouteTable::FindAgedLocked(Shard& shard, const TenantAccount& account,
                                                         const Age& age) {
  auto [begin, end] = shard.entries.equal_range(age.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second.account == &account && it->second.route.version == age.version) return it;
  }
  return shard.entries.end();
}

std::optional<RouteTable::Aged> RouteTable::FindAged(const TenantAccount& account,
                                                     const Age& age) const {
  const Slot slot = slots_.Of(age.hash);
  Shard& shard = shards_[ShardIndex(slot)];
  base::MutexLock lock(shard.mu);
  if (GateLocked(shard, slot) != kItemOk) return std::nullopt;
  const auto found = FindAgedLocked(shard, account, age);
  if (found == shard.entries.end()) return std::nullopt;
  const Entry& entry = found->second;
  return Aged{LoadOf(entry), entry.local && entry.local->in_use()};
}

std::optional<KeyedRoute> RouteTable::EvictAged(const TenantAccount& account, const Age& age,
                                                Superseded* superseded) {
  const Slot slot = slots_.Of(age.hash);
  Shard& shard = shards_[ShardIndex(slot)];
  base::MutexLock lock(shard.mu);
  if (GateLocked(shard, slot) != kItemOk) return std::nullopt;
  const auto found = FindAgedLocked(shard, account, age);
  if (found == shard.entries.end()) return std::nullopt;
  Entry& entry = found->second;
  KeyedRoute gone;
  gone.key = std::move(entry.key);
  gone.ref = {age.hash, entry.scope, {}};
  gone.route = {.version = entry.route.version, .size = entry.route.size};
  MoveOut(age.hash, entry, superseded);
  reasons_.NoteLost(age.hash, kItemEvicted);
  shard.entries.erase(found);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return gone;
}

}  // namespace mooncake::node

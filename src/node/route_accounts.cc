// The part of RouteTable that counts what tenants with a quota have.
#include <utility>

#include "node/route_table.h"

namespace mooncake::node {

Load RouteTable::LoadOf(const Entry& entry) {
  return node::LoadOf(entry.route.size, entry.route.replicas.size() + (entry.local ? 1 : 0));
}

void RouteTable::Uncount(const Entry& entry) {
  if (entry.account != nullptr) std::exchange(entry.account, nullptr)->Lower(LoadOf(entry));
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
      if (entry.account == account) continue;
      Uncount(entry);
      entry.account = account;
      if (account != nullptr) account->Raise(LoadOf(entry));
    }
  }
}

}  // namespace mooncake::node

#include "node/route_table.h"

#include <algorithm>
#include <utility>

namespace mooncake::node {

using routing::Slot;

RouteTable::RouteTable(ExtentStore& extents, routing::Slots slots, TenantMeter* meter)
    : extents_(extents), slots_(slots), meter_(meter), shards_(std::make_unique<Shard[]>(kShards)) {
  for (size_t i = 0; i < kShards; ++i) {
    base::MutexLock lock(shards_[i].mu);
    shards_[i].slots.resize(slots_.count() / kShards);
  }
}

ItemCode RouteTable::GateLocked(Shard& shard, Slot slot, uint64_t revision) const {
  const SlotInfo& info = InfoOf(shard, slot);
  switch (info.state) {
    case SlotState::kServing:
      // 0: an asker without a view.
      return revision != 0 && revision < info.since ? kItemWrongAuthority : kItemOk;
    case SlotState::kPending: return kItemRetryLater;
    case SlotState::kForeign:
    case SlotState::kFormer: return kItemWrongAuthority;
  }
  return kItemWrongAuthority;
}

RouteTable::Entries::iterator RouteTable::FindLocked(Shard& shard, const KeyRef& ref) {
  auto [begin, end] = shard.entries.equal_range(ref.hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second.scope == ref.scope && it->second.key == ref.key) return it;
  }
  return shard.entries.end();
}

ItemCode RouteTable::Lookup(const KeyRef& ref, Route* route, ExtentPin* local,
                            NameIndex asker) const {
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  if (ItemCode gate = GateLocked(shard, SlotOf(ref)); gate != kItemOk) return gate;
  auto found = FindLocked(shard, ref);
  if (found == shard.entries.end()) return CodeOf(ErrorCode::kNotFound);
  const Entry& entry = found->second;
  if (route != nullptr) {
    *route = entry.route;
    if (entry.local) route->replicas.insert(route->replicas.begin(), entry.local->place());
  }
  const auto& others = entry.route.replicas;
  const bool askers =
      asker != kSelf && std::any_of(others.begin(), others.end(),
                                    [&](const Place& place) { return place.owner == asker; });
  if (local != nullptr && !askers) *local = entry.local;
  return kItemOk;
}

void RouteTable::MoveOut(uint64_t hash, Entry& entry, Superseded* superseded) {
  Uncount(hash, entry);
  superseded->version = entry.route.version;
  superseded->remote = std::move(entry.route.replicas);
  superseded->local = std::move(entry.local);
}

void RouteTable::KeepShared(const Publication& kept, Superseded* superseded) {
  std::erase_if(superseded->remote, [&](const Place& place) {
    return std::find(kept.remote.begin(), kept.remote.end(), place) != kept.remote.end();
  });
  if (superseded->local.get() == kept.local.get()) superseded->local = {};
}

bool RouteTable::HasAll(const Entry& entry, const std::vector<Place>& places) {
  return std::all_of(places.begin(), places.end(), [&](const Place& place) {
    const std::vector<Place>& remote = entry.route.replicas;
    return (entry.local && entry.local->place() == place) ||
           std::find(remote.begin(), remote.end(), place) != remote.end();
  });
}

ItemCode RouteTable::Publish(const KeyRef& ref, Publication publication, Version* version,
                             Superseded* superseded, Charge* charge) {
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  if (ItemCode gate = GateLocked(shard, SlotOf(ref), publication.revision); gate != kItemOk) {
    return gate;
  }
  auto found = FindLocked(shard, ref);
  const bool present = found != shard.entries.end();
  const Version current = present ? found->second.route.version : 0;
  const bool other = publication.expected && *publication.expected != current;
  if (other || (present && !HasAll(found->second, publication.kept))) {
    ++shard.published.conflict;
    return CodeOf(ErrorCode::kConflict);
  }
  if (publication.if_absent && present) {
    ++shard.published.ok;
    *version = current;
    superseded->remote = std::move(publication.remote);
    superseded->local = std::move(publication.local);
    superseded->is_the_new_one = true;
    KeepShared({.remote = found->second.route.replicas, .local = found->second.local}, superseded);
    return kItemOk;
  }
  TenantAccount* account = meter_ == nullptr ? nullptr : meter_->Find(ref.scope);
  const Entry* const before = present ? &found->second : nullptr;
  if (account != nullptr && !Settle(*account, charge, ref.hash, before, publication)) {
    return kItemRetryLater;
  }
  ++shard.published.ok;
  // A value that is only moved gets no younger.
  const bool same = present && publication.expected;
  const uint64_t published_ms = same ? before->published_ms : publication.published_ms;
  if (!present) {
    found = shard.entries.emplace(ref.hash, Entry{.scope = ref.scope, .key = std::string(ref.key)});
    count_.fetch_add(1, std::memory_order_relaxed);
  } else {
    MoveOut(ref.hash, found->second, superseded);
  }
  reasons_.NotePublished(ref);
  Entry& entry = found->second;
  entry.account = account;
  Version& last = InfoOf(shard, SlotOf(ref)).last;
  *version = last = std::max(last, current) + 1;
  KeepShared(publication, superseded);
  entry.route = {*version,
                 publication.size,
                 publication.checksum,
                 publication.has_checksum,
                 publication.soft_pin,
                 std::move(publication.remote)};
  entry.local = std::move(publication.local);
  entry.published_ms = published_ms;
  NoteAge(ref.hash, entry, account != nullptr && account->evicts());
  return kItemOk;
}

RouteTable::PublishCounts RouteTable::publish_counts() const {
  PublishCounts sum;
  for (size_t i = 0; i < kShards; ++i) {
    base::MutexLock lock(shards_[i].mu);
    sum.ok += shards_[i].published.ok;
    sum.conflict += shards_[i].published.conflict;
  }
  return sum;
}

ItemCode RouteTable::Remove(const KeyRef& ref, Superseded* superseded, uint64_t revision) {
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  if (ItemCode gate = GateLocked(shard, SlotOf(ref), revision); gate != kItemOk) return gate;
  auto found = FindLocked(shard, ref);
  if (found == shard.entries.end()) return CodeOf(ErrorCode::kNotFound);
  MoveOut(ref.hash, found->second, superseded);
  reasons_.NoteRemoved(ref);
  shard.entries.erase(found);
  count_.fetch_sub(1, std::memory_order_relaxed);
  return kItemOk;
}

ItemCode RouteTable::Check(const KeyRef& ref, const Place& replica, bool drop, Version* version) {
  ExtentPin dropped;  // Released after the lock.
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  if (ItemCode gate = GateLocked(shard, SlotOf(ref)); gate != kItemOk) return gate;
  auto found = FindLocked(shard, ref);
  if (found == shard.entries.end()) return CodeOf(ErrorCode::kNotFound);
  Entry& entry = found->second;
  *version = entry.route.version;
  const Load before = LoadOf(entry);
  std::vector<Place>& remote = entry.route.replicas;
  const bool ours = entry.local && entry.local->place() == replica;
  auto place = std::find(remote.begin(), remote.end(), replica);
  if (!ours && place == remote.end()) return CodeOf(ErrorCode::kNotFound);
  if (!drop) return kItemOk;
  if (ours) {
    dropped = std::move(entry.local);
  } else {
    remote.erase(place);
  }
  CountLess(entry, before);
  if (!entry.local && remote.empty()) {
    Uncount(ref.hash, entry);
    reasons_.NoteLost(ref.hash, kItemEvicted);
    shard.entries.erase(found);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
  return kItemOk;
}

uint64_t RouteTable::RemoveScope(
    ScopeIndex scope, const std::function<void(const KeyRef&, const Superseded&)>& removed) {
  uint64_t count = 0;
  for (size_t i = 0; i < kShards; ++i) {
    std::vector<std::pair<uint64_t, Entry>> taken;
    {
      Shard& shard = shards_[i];
      base::MutexLock lock(shard.mu);
      for (auto it = shard.entries.begin(); it != shard.entries.end();) {
        const bool served = GateLocked(shard, slots_.Of(it->first)) == kItemOk;
        if (!served || it->second.scope != scope) {
          ++it;
          continue;
        }
        taken.emplace_back(it->first, std::move(it->second));
        it = shard.entries.erase(it);
      }
    }
    count += taken.size();
    count_.fetch_sub(taken.size(), std::memory_order_relaxed);
    for (auto& [hash, entry] : taken) {
      Superseded superseded;
      MoveOut(hash, entry, &superseded);
      const KeyRef ref{hash, entry.scope, entry.key};
      reasons_.NoteRemoved(ref);
      removed(ref, superseded);
    }
  }
  return count;
}

void RouteTable::AdoptLocalLocked(Entry& entry, const Place& place) {
  if (entry.local) return;
  entry.local = extents_.Find(place.segment, place.offset, place.generation);
}

void RouteTable::Import(const KeyRef& ref, const Route& route, bool mirror, uint64_t revision,
                        uint64_t published_ms) {
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  SlotInfo& info = InfoOf(shard, SlotOf(ref));
  const SlotState state = info.state;
  if (mirror && info.unmirrored && revision <= shard.mirrors_by) return;
  const bool mirrored = state == SlotState::kForeign || state == SlotState::kFormer;
  if (mirror ? !mirrored : state != SlotState::kPending) return;
  if (!mirror) info.last = std::max(info.last, route.version);
  auto found = FindLocked(shard, ref);
  if (found != shard.entries.end() && found->second.route.version > route.version) return;
  if (found == shard.entries.end()) {
    found = shard.entries.emplace(ref.hash, Entry{.scope = ref.scope, .key = std::string(ref.key)});
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  Entry& entry = found->second;
  Uncount(ref.hash, entry);  // It is not served, perhaps since a moment ago.
  if (entry.published_ms == 0 || entry.route.version < route.version) {
    entry.published_ms = published_ms;
  }
  if (entry.route.version < route.version) {
    entry.route = route;
    entry.route.replicas.clear();
    entry.local = {};
  }
  for (const Place& place : route.replicas) {
    std::vector<Place>& known = entry.route.replicas;
    if (place.owner == kSelf && !mirror) {  // A mirror pins nothing.
      AdoptLocalLocked(entry, place);
    } else if (std::find(known.begin(), known.end(), place) == known.end()) {
      known.push_back(place);
    }
  }
  if (!entry.local && entry.route.replicas.empty()) {  // Our own extent is gone by now.
    shard.entries.erase(found);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
}

void RouteTable::ForgetMirror(const KeyRef& ref, Version version) {
  ExtentPin dropped;
  Shard& shard = ShardOf(ref);
  base::MutexLock lock(shard.mu);
  const SlotState state = InfoOf(shard, SlotOf(ref)).state;
  if (state != SlotState::kForeign && state != SlotState::kFormer) return;
  auto found = FindLocked(shard, ref);
  if (found == shard.entries.end() || found->second.route.version > version) return;
  Uncount(ref.hash, found->second);
  dropped = std::move(found->second.local);
  shard.entries.erase(found);
  count_.fetch_sub(1, std::memory_order_relaxed);
}

std::vector<KeyedRoute> RouteTable::Export(size_t shard_number,
                                           const std::function<bool(Slot)>& wanted) const {
  std::vector<KeyedRoute> routes;
  Shard& shard = shards_[shard_number];
  {
    base::MutexLock lock(shard.mu);
    for (const auto& [hash, entry] : shard.entries) {
      if (!wanted(slots_.Of(hash))) continue;
      KeyedRoute& keyed = routes.emplace_back();
      keyed.key = entry.key;
      keyed.ref = {hash, entry.scope, {}};
      keyed.route = entry.route;
      if (entry.local) keyed.route.replicas.push_back(entry.local->place());
      keyed.published_ms = entry.published_ms;
    }
  }
  for (KeyedRoute& keyed : routes) keyed.ref.key = keyed.key;  // After the last reallocation.
  return routes;
}

uint64_t RouteTable::SweepOwners(const std::function<bool(const Place&)>& gone) {
  uint64_t changed = 0;
  for (size_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    for (auto it = shard.entries.begin(); it != shard.entries.end();) {
      std::vector<Place>& remote = it->second.route.replicas;
      const Load before = LoadOf(it->second);
      changed += std::erase_if(remote, gone) > 0;
      CountLess(it->second, before);
      const bool empty = remote.empty() && !it->second.local;
      if (empty) {
        Uncount(it->first, it->second);
        reasons_.NoteLost(it->first, kItemOwnerGone);
        count_.fetch_sub(1, std::memory_order_relaxed);
      }
      it = empty ? shard.entries.erase(it) : std::next(it);
    }
  }
  return changed;
}

uint64_t RouteTable::route_count() const { return count_.load(std::memory_order_relaxed); }

}  // namespace mooncake::node

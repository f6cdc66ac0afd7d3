// The part of RouteTable that has slots come and go.
#include <algorithm>
#include <utility>

#include "node/route_table.h"

namespace mooncake::node {

using routing::Slot;

std::vector<std::vector<Slot>> RouteTable::ByShard(std::span<const Slot> slots) const {
  std::vector<std::vector<Slot>> shards(kShards);
  for (Slot slot : slots) shards[ShardIndex(slot)].push_back(slot);
  return shards;
}

bool RouteTable::Serves(Slot slot) const {
  Shard& shard = shards_[ShardIndex(slot)];
  base::MutexLock lock(shard.mu);
  return InfoOf(shard, slot).state == SlotState::kServing;
}

uint64_t RouteTable::EraOf(Slot slot) const {
  Shard& shard = shards_[ShardIndex(slot)];
  base::MutexLock lock(shard.mu);
  const SlotInfo& info = InfoOf(shard, slot);
  return info.state == SlotState::kServing ? info.era : 0;
}

Truth RouteTable::TruthOf(Slot slot, const SlotInfo& info) {
  return {slot, info.since, info.passed_on_s != 0, info.unsure, info.era};
}

std::vector<Slot> RouteTable::BeginTakeover(std::span<const Slot> slots, uint64_t revision,
                                            std::vector<Truth>* known) {
  std::vector<Slot> pending;
  std::vector<Entry> dropped;  // Destroyed without a lock.
  const std::vector<std::vector<Slot>> shards = ByShard(slots);
  for (size_t i = 0; i < kShards; ++i) {
    if (shards[i].empty()) continue;
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    std::vector<bool> wanted(shard.slots.size());
    for (Slot slot : shards[i]) {
      SlotInfo& info = InfoOf(shard, slot);
      if (info.state == SlotState::kServing) continue;
      pending.push_back(slot);
      if (info.state == SlotState::kPending) {
        info.since = revision;
        continue;
      }
      if (info.state == SlotState::kFormer) {
        if (known != nullptr) {
          known->push_back(TruthOf(slot, info));
        }
        shard.set_aside.emplace(slot, SetAside{info, {}});
      }
      info = {.state = SlotState::kPending, .since = revision};
      wanted[PlaceOf(slot)] = true;
    }
    for (auto it = shard.entries.begin(); it != shard.entries.end();) {
      const Slot slot = slots_.Of(it->first);
      const auto next = std::next(it);
      if (wanted[PlaceOf(slot)]) SetAsideLocked(shard, slot, it, &dropped);
      it = next;
    }
  }
  return pending;
}

// What the truth of a former slot names is kept: it is as of then. Mirrors are not, as nobody keeps
// them up to date meanwhile.
void RouteTable::SetAsideLocked(Shard& shard, Slot slot, Entries::iterator entry,
                                std::vector<Entry>* dropped) {
  Uncount(entry->first, entry->second);
  // Comes back from whoever has the truth, unless that went with its owner.
  reasons_.NoteLost(entry->first, kItemOwnerGone);
  count_.fetch_sub(1, std::memory_order_relaxed);
  const auto aside = shard.set_aside.find(slot);
  if (aside != shard.set_aside.end() && entry->second.route.version <= aside->second.info.since) {
    aside->second.entries.push_back(shard.entries.extract(entry));
    return;
  }
  dropped->push_back(std::move(entry->second));
  shard.entries.erase(entry);
}

// A takeover that comes to nothing leaves its slots as they were, without what has been imported
// for it: somebody may ask what this node knew. Pins go to `dropped`.
void RouteTable::PutBackLocked(Shard& shard, std::span<const Slot> slots,
                               std::vector<Entry>* dropped) {
  std::vector<bool> back(shard.slots.size());
  bool any = false;
  for (Slot slot : slots) {
    SlotInfo& info = InfoOf(shard, slot);
    if (info.state != SlotState::kPending) continue;
    const auto aside = shard.set_aside.find(slot);
    info = aside != shard.set_aside.end() ? aside->second.info : SlotInfo{};
    info.unsure = true;
    back[PlaceOf(slot)] = any = true;
  }
  if (!any) return;
  for (auto it = shard.entries.begin(); it != shard.entries.end();) {
    if (!back[PlaceOf(slots_.Of(it->first))]) {
      ++it;
      continue;
    }
    dropped->push_back(std::move(it->second));
    it = shard.entries.erase(it);
    count_.fetch_sub(1, std::memory_order_relaxed);
  }
  for (Slot slot : slots) {
    const auto aside = shard.set_aside.find(slot);
    if (!back[PlaceOf(slot)] || aside == shard.set_aside.end()) continue;
    for (Entries::node_type& entry : aside->second.entries) {
      shard.entries.insert(std::move(entry));
      count_.fetch_add(1, std::memory_order_relaxed);
    }
    shard.set_aside.erase(aside);
  }
}

void RouteTable::EndTakeover(std::span<const Slot> slots, uint64_t term,
                             std::span<const uint64_t> eras, std::span<const Version> known) {
  std::vector<SetAside> dropped;  // Destroyed without a lock.
  for (Slot slot : slots) {
    Shard& shard = shards_[ShardIndex(slot)];
    base::MutexLock lock(shard.mu);
    SlotInfo& info = InfoOf(shard, slot);
    if (info.state != SlotState::kPending) continue;
    info.state = SlotState::kServing;
    info.era = eras.empty() ? 0 : eras[slot];
    // Every version from now on is above what was given before, also to keys that are gone.
    info.last = std::max({info.last, term << kTermBits, known.empty() ? 0 : known[slot]});
    const auto aside = shard.set_aside.find(slot);
    if (aside == shard.set_aside.end()) continue;
    dropped.push_back(std::move(aside->second));
    shard.set_aside.erase(aside);
  }
}

void RouteTable::AbandonTakeover(std::span<const Slot> slots) {
  std::vector<Entry> dropped;  // Destroyed without a lock.
  const std::vector<std::vector<Slot>> shards = ByShard(slots);
  for (size_t i = 0; i < kShards; ++i) {
    if (shards[i].empty()) continue;
    base::MutexLock lock(shards_[i].mu);
    PutBackLocked(shards_[i], shards[i], &dropped);
  }
  Unpin(slots);
}

void RouteTable::StopServingLocked(SlotInfo& info, bool unsure) {
  if (info.state == SlotState::kFormer && unsure) info.unsure = true;
  if (info.state != SlotState::kServing) return;
  // No more than it has given itself: another node may have served the slot since, by versions that
  // are older than those that this one gives in slots that it took over later.
  info = {.state = SlotState::kFormer,
          .unsure = unsure,
          .since = std::max(info.since << kTermBits, info.last),
          .era = info.era};
}

Fenced RouteTable::Fence(std::span<const Slot> slots, uint64_t revision, uint64_t now_ms) {
  const auto now_s = static_cast<uint32_t>(now_ms / 1'000 + 1);
  Fenced fenced;
  std::vector<Slot> all_given;
  std::vector<Entry> dropped;  // Destroyed without a lock.
  const std::vector<std::vector<Slot>> shards = ByShard(slots);
  for (size_t i = 0; i < kShards; ++i) {
    if (shards[i].empty()) continue;
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    std::vector<Slot> given;
    for (Slot slot : shards[i]) {
      const SlotInfo& info = InfoOf(shard, slot);
      const bool ours = info.state == SlotState::kServing || info.state == SlotState::kPending;
      (ours && revision < info.since ? fenced.kept : given).push_back(slot);
    }
    all_given.insert(all_given.end(), given.begin(), given.end());
    PutBackLocked(shard, given, &dropped);
    for (Slot slot : given) {
      SlotInfo& info = InfoOf(shard, slot);
      StopServingLocked(info, false);
      if (info.state != SlotState::kFormer) continue;
      fenced.served.push_back(TruthOf(slot, info));
      if (info.passed_on_s == 0) info.passed_on_s = now_s;
    }
  }
  Unpin(all_given);
  return fenced;
}

void RouteTable::Lose(std::span<const Slot> slots, bool unsure) {
  std::vector<Entry> dropped;  // Destroyed without a lock.
  const std::vector<std::vector<Slot>> shards = ByShard(slots);
  for (size_t i = 0; i < kShards; ++i) {
    if (shards[i].empty()) continue;
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    PutBackLocked(shard, shards[i], &dropped);
    for (Slot slot : shards[i]) StopServingLocked(InfoOf(shard, slot), unsure);
  }
  Unpin(slots);
}

void RouteTable::Unpin(std::span<const Slot> slots) {
  std::vector<bool> wanted(slots_.count());
  for (Slot slot : slots) wanted[slot] = true;
  std::vector<ExtentPin> dropped;  // Released without a lock.
  for (size_t i = 0; i < kShards && !slots.empty(); ++i) {
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    for (auto& [hash, entry] : shard.entries) {
      const Slot slot = slots_.Of(hash);
      if (!wanted[slot] || !entry.local || InfoOf(shard, slot).state == SlotState::kServing) {
        continue;
      }
      entry.route.replicas.insert(entry.route.replicas.begin(), entry.local->place());
      dropped.push_back(std::move(entry.local));
    }
  }
}

void RouteTable::DropMirrors(const std::vector<bool>& foreign, uint64_t now_ms, uint64_t revision) {
  for (size_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    base::MutexLock lock(shard.mu);
    const std::span<SlotInfo> infos(shard.slots);
    std::vector<bool> drop(infos.size());
    for (size_t k = 0; k < drop.size(); ++k) {
      SlotInfo& info = infos[k];
      const Slot slot = SlotAt(i, k);
      drop[k] = (info.state == SlotState::kForeign && foreign[slot]) ||
                (info.state == SlotState::kFormer && foreign[slot] && info.passed_on_s != 0 &&
                 info.passed_on_s * uint64_t{1'000} + kPassedOnMs < now_ms);
      if (drop[k]) info = {};
      info.unmirrored = foreign[slot];
    }
    shard.mirrors_by = revision;
    const size_t dropped = std::erase_if(shard.entries, [&](const auto& entry) {
      const Slot slot = slots_.Of(entry.first);
      const SlotInfo& info = infos[PlaceOf(slot)];
      const bool mirrored =
          info.state == SlotState::kFormer && entry.second.route.version > info.since;
      const bool goes = drop[PlaceOf(slot)] || (mirrored && foreign[slot]);
      if (goes) Uncount(entry.first, entry.second);
      return goes;
    });
    count_.fetch_sub(dropped, std::memory_order_relaxed);
  }
}

}  // namespace mooncake::node

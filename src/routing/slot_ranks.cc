#include "routing/slot_ranks.h"

#include <algorithm>
#include <array>

namespace mooncake::routing {

SlotRanks::Id SlotRanks::NewId(const std::string& name, double weight) {
  Id id = static_cast<Id>(names_.size());
  if (unused_.empty()) {
    names_.emplace_back();
    contenders_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  names_[id] = name;
  contenders_[id] = MakeContender(name, weight);
  return id;
}

bool SlotRanks::Precedes(Id a, uint64_t cost_a, Id b, uint64_t cost_b) const {
  return cost_a != cost_b ? cost_a < cost_b : names_[a] < names_[b];
}

void SlotRanks::RemoveEverywhere(Id id) {
  live_.erase(std::find(live_.begin(), live_.end(), id));
  for (Slot slot = 0; slot < kSlotCount; ++slot) {
    Id* first = kept_.data() + size_t{slot} * kKept;
    Id* last = first + counts_[slot];
    Id* found = std::find(first, last, id);
    if (found == last) continue;
    std::copy(found + 1, last, found);
    --counts_[slot];
  }
}

// Puts `id` among those that the slot keeps; the last one falls out when there is no room.
void SlotRanks::InsertAt(Slot slot, Id id, uint64_t cost) {
  Id* first = kept_.data() + size_t{slot} * kKept;
  size_t count = std::min<size_t>(counts_[slot] + 1u, kKept);
  size_t place = count - 1;
  for (; place > 0; --place) {
    Id other = first[place - 1];
    if (!Precedes(id, cost, other, CostOf(contenders_[other], slot))) break;
    first[place] = other;
  }
  first[place] = id;
  counts_[slot] = static_cast<uint8_t>(count);
}

void SlotRanks::AddEverywhere(Id id) {
  const Contender contender = contenders_[id];
  for (Slot slot = 0; slot < kSlotCount; ++slot) {
    uint64_t cost = CostOf(contender, slot);
    size_t count = counts_[slot];
    if (count < live_.size() || count == kKept) {
      // Others exist that the slot does not keep. Behind its last one nothing is known.
      if (count == 0) continue;
      Id last = kept_[size_t{slot} * kKept + count - 1];
      if (!Precedes(id, cost, last, CostOf(contenders_[last], slot))) continue;
    }
    InsertAt(slot, id, cost);
  }
  live_.push_back(id);
}

void SlotRanks::Refill(Slot slot) {
  std::array<uint64_t, kKept> costs;
  Id* ids = kept_.data() + size_t{slot} * kKept;
  size_t count = 0;
  for (Id id : live_) {
    uint64_t cost = CostOf(contenders_[id], slot);
    if (count == kKept) {
      if (!Precedes(id, cost, ids[kKept - 1], costs[kKept - 1])) continue;
    } else {
      ++count;
    }
    size_t place = count - 1;
    for (; place > 0 && Precedes(id, cost, ids[place - 1], costs[place - 1]); --place) {
      ids[place] = ids[place - 1];
      costs[place] = costs[place - 1];
    }
    ids[place] = id;
    costs[place] = cost;
  }
  counts_[slot] = static_cast<uint8_t>(count);
}

void SlotRanks::Assign(const std::map<std::string, double>& weights) {
  std::vector<Id> gone;
  for (auto member = members_.begin(); member != members_.end();) {
    auto wanted = weights.find(member->first);
    if (wanted != weights.end() && wanted->second == member->second.weight) {
      ++member;
      continue;
    }
    gone.push_back(member->second.id);
    member = members_.erase(member);
  }
  std::vector<Id> added;
  for (const auto& [name, weight] : weights) {
    auto [member, is_new] = members_.try_emplace(name, Member{0, weight});
    if (!is_new) continue;
    member->second.id = NewId(name, weight);
    added.push_back(member->second.id);
  }
  // An addition looks at two costs a slot, starting afresh at one for each contender.
  if (2 * added.size() + gone.size() >= weights.size()) {
    live_.clear();
    for (const auto& [name, member] : members_) live_.push_back(member.id);
    for (Slot slot = 0; slot < kSlotCount; ++slot) Refill(slot);
  } else {
    for (Id id : gone) RemoveEverywhere(id);
    for (Id id : added) AddEverywhere(id);
    size_t least = std::min(kRanksMax, live_.size());
    for (Slot slot = 0; slot < kSlotCount; ++slot) {
      if (counts_[slot] < least) Refill(slot);
    }
  }
  unused_.insert(unused_.end(), gone.begin(), gone.end());
}

}  // namespace mooncake::routing

#include "routing/slot_ranks.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace mooncake::routing {

namespace {

// So many pass the sieve of a slot on the average. That it is less than the podium takes, and all
// have to be asked, happens to one slot in a thousand.
constexpr double kPassing = 20;
constexpr size_t kSiftedMin = 32;  // With fewer contenders, as good as all would pass.

bool IsCheaperAfresh(size_t contenders, size_t added, size_t gone) {
  // An addition looks at two costs a slot, starting afresh at one for each contender...
  if (2 * added + gone >= contenders) return true;
  // ... or, where it sifts, at a hash for each and the costs of those that pass.
  constexpr size_t kHashesPerAddition = 8;
  constexpr size_t kHashesPerPodium = 150;
  return kHashesPerAddition * added >= contenders + kHashesPerPodium;
}

}  // namespace

SlotRanks::SlotRanks(uint32_t slot_count)
    : kept_(size_t{slot_count} * kKept), counts_(slot_count) {}

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

void SlotRanks::RemoveEverywhere(std::span<const Id> gone) {
  if (gone.empty()) return;
  std::vector<uint8_t> is_gone(names_.size());
  for (Id id : gone) is_gone[id] = 1;
  std::erase_if(live_, [&](Id id) { return is_gone[id] != 0; });
  for (Slot slot = 0; slot < counts_.size(); ++slot) {
    Id* first = kept_.data() + size_t{slot} * kKept;
    Id* last = first + counts_[slot];
    Id* end = std::remove_if(first, last, [&](Id id) { return is_gone[id] != 0; });
    counts_[slot] = static_cast<uint8_t>(end - first);
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
  for (Slot slot = 0; slot < counts_.size(); ++slot) {
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

// The best of those that were offered, in order.
class SlotRanks::Podium {
 public:
  explicit Podium(const SlotRanks& ranks) : ranks_(ranks) {}

  void Offer(Id id, uint64_t cost) {
    if (count_ == kKept) {
      if (!Before(id, cost, kKept - 1)) return;
    } else {
      ++count_;
    }
    size_t place = count_ - 1;
    for (; place > 0 && Before(id, cost, place - 1); --place) {
      ids_[place] = ids_[place - 1];
      costs_[place] = costs_[place - 1];
    }
    ids_[place] = id;
    costs_[place] = cost;
  }

  std::span<const Id> ids() const { return {ids_.data(), count_}; }

 private:
  bool Before(Id id, uint64_t cost, size_t place) const {
    if (cost != costs_[place]) [[likely]]
      return cost < costs_[place];
    return ranks_.names_[id] < ranks_.names_[ids_[place]];
  }

  const SlotRanks& ranks_;
  std::array<Id, kKept> ids_;
  std::array<uint64_t, kKept> costs_;
  size_t count_ = 0;
};

void SlotRanks::Store(Slot slot, const Podium& podium) {
  std::copy(podium.ids().begin(), podium.ids().end(), kept_.data() + size_t{slot} * kKept);
  counts_[slot] = static_cast<uint8_t>(podium.ids().size());
}

void SlotRanks::Refill(Slot slot) {
  Podium podium(*this);
  for (Id id : live_) podium.Offer(id, CostOf(contenders_[id], slot));
  Store(slot, podium);
}

// Most contenders are nowhere near the front of a slot, and their hash alone tells: the cost
// falls with it. So each gets the least hash that makes it cost no more than `cost_max`, which
// is set so that a few more than are kept pass. Whoever does not pass costs more than all who do:
// if these fill the podium, it is right, and else the slot asks everybody.
struct SlotRanks::Sieve {
  std::vector<uint64_t> seeds;     // In the order of live_, as the next.
  std::vector<uint64_t> hash_min;  // Passes from here.
  std::vector<uint32_t> passed;    // Scratch: indices into live_.
};

SlotRanks::Sieve SlotRanks::MakeSieve() const {
  Sieve sieve;
  uint64_t cost_max = CostOfHash(kHandicapMax, 0);
  // The lowest limit that lets kPassing through on the average. Only how long it takes depends
  // on this, so that floating point will do.
  for (uint64_t low = 0; low + 1 < cost_max;) {
    const uint64_t middle = low + (cost_max - low) / 2;
    double passing = 0;
    for (Id id : live_) passing += ShareWithin(contenders_[id], middle);
    (passing < kPassing ? low : cost_max) = middle;
  }
  for (Id id : live_) {
    sieve.seeds.push_back(contenders_[id].seed);
    sieve.hash_min.push_back(LeastHashWithin(contenders_[id].handicap, cost_max));
  }
  sieve.passed.resize(live_.size());
  return sieve;
}

// False: it did not do.
bool SlotRanks::RefillSifted(Slot slot, Sieve& sieve) {
  const size_t count = sieve.seeds.size();
  const uint64_t* seeds = sieve.seeds.data();
  const uint64_t* hash_min = sieve.hash_min.data();
  uint32_t* passed = sieve.passed.data();
  size_t passing = 0;
  const uint64_t spread = SpreadPoint(slot);
  for (size_t i = 0; i < count; ++i) {  // The one loop that matters; no branch to be mistaken in.
    passed[passing] = static_cast<uint32_t>(i);
    passing += HashOf(seeds[i], spread) >= hash_min[i] ? 1 : 0;
  }
  Podium podium(*this);
  for (size_t i = 0; i < passing; ++i) {
    const Id id = live_[passed[i]];
    podium.Offer(id, CostOf(contenders_[id], slot));
  }
  if (podium.ids().size() < kKept) return false;
  Store(slot, podium);
  return true;
}

void SlotRanks::RefillAll() {
  const bool sifted = live_.size() >= kSiftedMin;
  Sieve sieve = sifted ? MakeSieve() : Sieve{};
  for (Slot slot = 0; slot < counts_.size(); ++slot) {
    if (!sifted || !RefillSifted(slot, sieve)) Refill(slot);
  }
}

void SlotRanks::Assign(const std::map<std::string, double>& weights) {
  MC_CHECK(weights.size() <= kNodesMax);
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
  const size_t added = weights.size() - members_.size();
  const bool afresh = IsCheaperAfresh(weights.size(), added, gone.size());
  if (!afresh) RemoveEverywhere(gone);
  unused_.insert(unused_.end(), gone.begin(), gone.end());  // Nothing names them any more.
  if (afresh) live_.clear();
  for (const auto& [name, weight] : weights) {
    auto [member, is_new] = members_.try_emplace(name, Member{0, weight});
    if (is_new) member->second.id = NewId(name, weight);
    if (afresh) {
      live_.push_back(member->second.id);
    } else if (is_new) {
      AddEverywhere(member->second.id);
    }
  }
  if (afresh) return RefillAll();
  const size_t least = std::min(kRanksMax, live_.size());
  for (Slot slot = 0; slot < counts_.size(); ++slot) {
    if (counts_[slot] < least) Refill(slot);
  }
}

}  // namespace mooncake::routing

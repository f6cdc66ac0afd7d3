// SlotRanks: the best contenders of every slot, kept up to date while contenders come and go.
// A few more than the ranks that a view shows are kept, so that a departure seldom makes a slot
// ask everybody again. Ids only: with their costs it would be five times the memory, and a
// cost is quickly computed again.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "routing/rendezvous.h"
#include "routing/view.h"

namespace mooncake::routing {

class SlotRanks {
 public:
  // Index into names(); given to another contender only after its holder has left.
  using Id = uint16_t;

  explicit SlotRanks(uint32_t slot_count);

  // Makes `weights`, by name, the contenders, kNodesMax at most. Costs the share of those that
  // differ from before.
  void Assign(const std::map<std::string, double>& weights);

  size_t size() const { return live_.size(); }
  const std::vector<std::string>& names() const { return names_; }
  // The best first, at least min(kRanksMax, size()) of them; ties go to the lower name.
  std::span<const Id> Best(Slot slot) const {
    return {kept_.data() + size_t{slot} * kKept, counts_[slot]};
  }

 private:
  static constexpr size_t kKept = kRanksMax + 4;

  struct Member {
    Id id;
    double weight;
  };
  struct Sieve;
  class Podium;

  Id NewId(const std::string& name, double weight);
  bool Precedes(Id a, uint64_t cost_a, Id b, uint64_t cost_b) const;
  void RemoveEverywhere(std::span<const Id> gone);
  void AddEverywhere(Id id);
  void InsertAt(Slot slot, Id id, uint64_t cost);
  void Refill(Slot slot);
  void RefillAll();
  Sieve MakeSieve() const;
  bool RefillSifted(Slot slot, Sieve& sieve);
  void Store(Slot slot, const Podium& podium);

  std::map<std::string, Member> members_;
  std::vector<Id> live_;
  std::vector<Id> unused_;
  std::vector<Contender> contenders_;  // By id, as names_.
  std::vector<std::string> names_;
  // kept_[slot * kKept + i], i < counts_[slot]: the first counts_[slot] in the order of all.
  std::vector<Id> kept_;
  std::vector<uint8_t> counts_;  // By slot.
};

}  // namespace mooncake::routing

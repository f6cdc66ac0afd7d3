// RouteTable: the authority's side. Routes of keys, and which slots this node answers for.
//
// One shard holds whole slots, so a slot's state and its routes change under one lock. Shards
// are independent: two keys of different slots rarely share a lock, and no lock is held longer
// than a hash lookup (Export and the sweeps hold one shard's at a time).
//
// A slot is
//   foreign   another node's; routes kept here are mirrors,
//   pending   being taken over: routes are merged in, requests are told to retry soon. The slot is
//             as it was before if that comes to nothing,
//   serving   answered here,
//   former    was served here until a view said otherwise or a newer authority asked for it. What
//             is here is the whole truth as of then: see Truth.
// A slot that comes back, from whatever state, is taken over anew: another authority may have
// changed it in between, also one that could not ask.
//
// Thread-safe. Calls no port.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "node/extent_store.h"
#include "node/miss_reasons.h"
#include "node/route_changes.h"
#include "node/tenant_meter.h"
#include "node/types.h"

namespace mooncake::node {

class RouteTable {
 public:
  // `meter`: counts the routes of tenants with a quota; nullptr: nobody does.
  explicit RouteTable(ExtentStore& extents, routing::Slots slots = routing::Slots(),
                      TenantMeter* meter = nullptr);

  const routing::Slots& slots() const { return slots_; }
  routing::Slot SlotOf(const KeyRef& ref) const { return slots_.Of(ref.hash); }

  // --- Requests: all answer kItemRetryLater or kItemWrongAuthority for slots not served -----
  // kItemOk fills `route` (unless null) and `local` (unless null; empty when no replica here).
  // `route->replicas` includes the local one first. `local` stays empty, too, where `asker` has
  // a replica of its own.
  ItemCode Lookup(const KeyRef& ref, Route* route, ExtentPin* local, NameIndex asker = kSelf) const;
  // The code to answer a reader with, after Lookup gave `code`: of a key that is not there, with
  // the reason, as far as it is known.
  ItemCode Explain(const KeyRef& ref, ItemCode code) const {
    return code == CodeOf(ErrorCode::kNotFound) ? reasons_.WhyAbsent(ref) : code;
  }
  // kItemOk: published as `version`; `superseded` holds what it replaced. With if_absent and a
  // route present: kItemOk, version of that route, and `superseded` holds the publication's
  // own replicas. CodeOf(kConflict): `expected` is not current. `charge`: what was admitted of its
  // tenant's quota, used up by it. kItemRetryLater also: it would grow by more than that, and there
  // is no room.
  ItemCode Publish(const KeyRef& ref, Publication publication, Version* version,
                   Superseded* superseded, Charge* charge = nullptr);
  // CodeOf(kNotFound): nothing there.
  ItemCode Remove(const KeyRef& ref, Superseded* superseded, uint64_t revision = kNewest);
  // Whether the key's route names the replica; `drop` takes it out (and the route with its last
  // replica). CodeOf(kNotFound): it does not (any more).
  ItemCode Check(const KeyRef& ref, const Place& replica, bool drop, Version* version);
  // Removes the served routes of a scope; calls `removed` for each, without a lock held.
  uint64_t RemoveScope(ScopeIndex scope,
                       const std::function<void(const KeyRef&, const Superseded&)>& removed);

  // --- Slots ------------------------------------------------------------------------------
  bool Serves(routing::Slot slot) const;
  // Truth::era of a slot that is served; 0: it is not.
  uint64_t EraOf(routing::Slot slot) const;
  // Any -> pending, except that serving stays. Sets the routes of those that become pending aside;
  // returns these. `revision`: of the view that gives them to this node. `known` gets what this
  // node still knew of them; their routes are to be exported before.
  std::vector<routing::Slot> BeginTakeover(std::span<const routing::Slot> slots,
                                           uint64_t revision = 0,
                                           std::vector<Truth>* known = nullptr);
  // pending -> serving, with `term` for the versions to come. By slot: `eras`, Truth::era of what
  // is known of each, and `known`, the Truth::upto that was believed; empty: 0.
  void EndTakeover(std::span<const routing::Slot> slots, uint64_t term,
                   std::span<const uint64_t> eras = {}, std::span<const Version> known = {});
  // Pending ones are what they were before: another node has them, by a newer view.
  void AbandonTakeover(std::span<const routing::Slot> slots);
  // A newer authority asks: serving -> former, pending -> as before. Leaves slots alone that this
  // node has by a newer view than the asker's: its request was late, or it is behind.
  Fenced Fence(std::span<const routing::Slot> slots, uint64_t revision = kNewest,
               uint64_t now_ms = 0);
  // The view says that another node answers: likewise. `unsure`: this node was away, and another
  // one may have answered meanwhile.
  void Lose(std::span<const routing::Slot> slots, bool unsure = false);
  // A copy from a former authority, an owner or (mirror) the current authority. Kept when newer
  // than what is known; same version: replicas are merged. `mirror` only touches slots
  // that are neither served nor pending, the others only pending ones. `revision`: of the view by
  // which the authority sent the mirror. One that was under way when this node stopped to be a rank
  // of the slot would never be kept up to date, so it is not taken.
  void Import(const KeyRef& ref, const Route& route, bool mirror, uint64_t revision = kNewest,
              uint64_t published_ms = 0);
  // The current authority says the key is gone, as of `version`. Mirrors only.
  void ForgetMirror(const KeyRef& ref, Version version);
  // Drops what is known of foreign slots that are in `foreign`, where nobody keeps it up to date,
  // and, of former ones there, what came after their end; and all of those that were passed on so
  // long ago that whoever asked has them or will not have them. `revision`: of the view that says
  // so.
  static constexpr uint64_t kPassedOnMs = 60'000;
  void DropMirrors(const std::vector<bool>& foreign, uint64_t now_ms, uint64_t revision);
  // All routes of the shard's slots for which `wanted` is true. Shards: 0 .. kShards - 1.
  static constexpr size_t kShards = 256;
  std::vector<KeyedRoute> Export(size_t shard,
                                 const std::function<bool(routing::Slot)>& wanted) const;
  // Drops replicas that `gone` names, everywhere; routes without replicas go. Returns
  // the number of routes that changed.
  uint64_t SweepOwners(const std::function<bool(const Place&)>& gone);

  // Counts what is served, and only that, for those tenants that the meter has accounts of. After
  // slots or accounts have changed.
  void Recount();
  // Of a value that is served and that the account counts, by what its Age says. nullopt: gone.
  struct Aged {
    Load load;
    bool in_use = false;  // Somebody reads it here.
  };
  std::optional<Aged> FindAged(const TenantAccount& account, const Age& age) const;
  // Takes it out of use. nullopt: it is gone already.
  std::optional<KeyedRoute> EvictAged(const TenantAccount& account, const Age& age,
                                      Superseded* superseded);

  uint64_t route_count() const;  // Served and mirrored.
  // Publications that were asked for and answered, since the start.
  struct PublishCounts {
    uint64_t ok = 0;
    uint64_t conflict = 0;
  };
  PublishCounts publish_counts() const;

 private:
  enum class SlotState : uint8_t { kForeign, kPending, kServing, kFormer };
  struct Entry {
    Route route;  // Replicas of other owners only; ours is `local`.
    ExtentPin local;
    ScopeIndex scope = 0;
    mutable bool aged = false;  // The account's index has it.
    std::string key;
    mutable TenantAccount* account = nullptr;  // That counts it.
    uint64_t published_ms = 0;                 // 0: not known.
  };
  struct KeepHash {
    size_t operator()(uint64_t hash) const { return hash; }
  };
  using Entries = std::unordered_multimap<uint64_t, Entry, KeepHash>;
  struct SlotInfo {
    SlotState state = SlotState::kForeign;
    bool unsure = false;       // Former ones, as in Truth.
    bool unmirrored = false;   // Nobody keeps it up to date here, says the view of mirrors_by.
    uint32_t passed_on_s = 0;  // Former ones, as in Truth: when; 0: they were not.
    uint64_t since = 0;        // Pending or served since the view of this revision; former: `upto`.
    uint64_t era = 0;          // Served and former ones: Truth::era.
    Version last = 0;          // Pending or served: the last version of one of its keys.
  };
  // What was known of a slot that is being taken over, in case that comes to nothing.
  struct SetAside {
    SlotInfo info;
    std::vector<Entries::node_type> entries;
  };
  struct Shard {
    mutable base::Mutex mu;
    Entries entries MC_GUARDED_BY(mu);
    std::vector<SlotInfo> slots MC_GUARDED_BY(mu);
    std::unordered_map<routing::Slot, SetAside> set_aside MC_GUARDED_BY(mu);
    PublishCounts published MC_GUARDED_BY(mu);
    uint64_t mirrors_by MC_GUARDED_BY(mu) = 0;  // Revision as of DropMirrors.
  };

  // The second byte of the hash makes the shard, however many bits more make the slot.
  static constexpr uint32_t kShardBits = 8;
  static_assert(kShards == size_t{1} << kShardBits && 2 * kShardBits == kSlotBitsMin);
  uint32_t low_bits() const { return slots_.bits() - kSlotBitsMin; }
  size_t ShardIndex(routing::Slot slot) const { return (slot >> low_bits()) % kShards; }
  // Of a slot in its shard, and back.
  size_t PlaceOf(routing::Slot slot) const {
    const size_t low = slot & ((size_t{1} << low_bits()) - 1);
    return (size_t{slot} >> (low_bits() + kShardBits) << low_bits()) | low;
  }
  routing::Slot SlotAt(size_t shard, size_t place) const {
    const size_t low = place & ((size_t{1} << low_bits()) - 1);
    const size_t high = place >> low_bits() << kShardBits;
    return static_cast<routing::Slot>(((high | shard) << low_bits()) | low);
  }
  Shard& ShardOf(const KeyRef& ref) const { return shards_[ShardIndex(SlotOf(ref))]; }
  SlotInfo& InfoOf(Shard& shard, routing::Slot slot) const MC_REQUIRES(shard.mu) {
    return shard.slots[PlaceOf(slot)];
  }
  ItemCode GateLocked(Shard& shard, routing::Slot slot, uint64_t revision = kNewest) const
      MC_REQUIRES(shard.mu);
  static Entries::iterator FindLocked(Shard& shard, const KeyRef& ref) MC_REQUIRES(shard.mu);
  static bool HasAll(const Entry& entry, const std::vector<Place>& places);
  // A publication may come twice (its first reply was lost): what is in use is not superseded.
  static void KeepShared(const Publication& kept, Superseded* superseded);
  static void MoveOut(uint64_t hash, Entry& entry, Superseded* superseded);
  static Load LoadOf(const Entry& entry);
  static Age AgeOf(uint64_t hash, const Entry& entry);
  static void NoteAge(uint64_t hash, const Entry& entry, bool aged);
  // What it replaces (nullptr: nothing) is not counted any more. False: there is no room for it.
  static bool Settle(TenantAccount& account, Charge* charge, uint64_t hash, const Entry* before,
                     const Publication& publication);
  // Before an entry goes, or is not served any more.
  static void Uncount(uint64_t hash, const Entry& entry);
  static Entries::iterator FindAgedLocked(Shard& shard, const TenantAccount& account,
                                          const Age& age) MC_REQUIRES(shard.mu);
  // After some of its replicas went; before them it was `before`.
  static void CountLess(const Entry& entry, const Load& before);
  std::vector<std::vector<routing::Slot>> ByShard(std::span<const routing::Slot> slots) const;
  void SetAsideLocked(Shard& shard, routing::Slot slot, Entries::iterator entry,
                      std::vector<Entry>* dropped) MC_REQUIRES(shard.mu);
  static Truth TruthOf(routing::Slot slot, const SlotInfo& info);
  static void StopServingLocked(SlotInfo& info, bool unsure);
  void PutBackLocked(Shard& shard, std::span<const routing::Slot> slots,
                     std::vector<Entry>* dropped) MC_REQUIRES(shard.mu);
  // What is no more served pins no bytes: our own replicas become places like all others.
  void Unpin(std::span<const routing::Slot> slots);
  void AdoptLocalLocked(Entry& entry, const Place& place);

  ExtentStore& extents_;
  const routing::Slots slots_;
  TenantMeter* const meter_;
  std::unique_ptr<Shard[]> shards_;
  MissReasons reasons_;
  std::atomic<uint64_t> count_{0};
};

}  // namespace mooncake::node

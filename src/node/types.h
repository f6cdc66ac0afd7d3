// The words that the node layer shares: a key inside a scope, a place of bytes, a route, and
// the codes that items carry on the wire.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "metadata/metadata_store.h"
#include "mooncake/result.h"
#include "routing/scope.h"
#include "routing/view.h"

namespace mooncake::node {

// Versions of a key grow with every publication. An authority draws them from one counter for each
// slot that starts, for one taken over at revision r, at r << kTermBits: later terms are always
// above earlier ones, because revisions are at least as large as the service's clock in ms and
// nobody publishes 2^22 times in a millisecond.
using Version = uint64_t;
inline constexpr int kTermBits = 22;
// What peers may name: one can always be drawn above it. Clocks come there in the year 2074.
inline constexpr Version kVersionMax = ~Version{0} - (Version{1} << 62);

// An item's outcome on the wire: 0, an ErrorCode, or one of these.
using ItemCode = int32_t;
inline constexpr ItemCode kItemOk = 0;
inline constexpr ItemCode kItemRetryLater = -1001;
inline constexpr ItemCode kItemWrongAuthority = -1002;
inline constexpr ItemCode kItemUnchanged = -1003;  // Of a get: the asker's copy is current.
// Kinds of kNotFound; to peers that do not know them they are that.
inline constexpr ItemCode kItemEvicted = -1004;
inline constexpr ItemCode kItemOwnerGone = -1005;
inline constexpr ItemCode kItemOtherScope = -1006;

constexpr ItemCode CodeOf(ErrorCode code) { return static_cast<ItemCode>(code); }
// Unknown numbers from newer peers become kNotFound's "unspecified".
ErrorCode ErrorCodeOf(ItemCode code);
ErrorReason ErrorReasonOf(ItemCode code);

using NameIndex = uint32_t;   // Of a node's "stable_id:epoch" in NameTable. 0 is this node.
using ScopeIndex = uint32_t;  // Of a scope in ScopeTable.
inline constexpr NameIndex kSelf = 0;
inline constexpr ScopeIndex kNoScope = ~ScopeIndex{0};  // Of none in the table: no key has it.

struct KeyRef {
  uint64_t hash = 0;
  ScopeIndex scope = 0;
  std::string_view key;
};

struct Place {
  NameIndex owner = kSelf;
  uint32_t segment = 0;
  uint64_t offset = 0;
  uint64_t generation = 0;
  bool operator==(const Place&) const = default;
};

// Generations are drawn from one counter that starts, for a process, at its instance << this. So
// a place says which process it is of, even where names repeat, as a metadata service that has
// lost everything gives out the same epochs again.
inline constexpr int kInstanceShift = 26;
constexpr uint64_t FirstGeneration(uint32_t instance) {
  return (uint64_t{instance & 0x7fffffff} << kInstanceShift) + 1;  // Inventories have 58 bits.
}
constexpr bool IsOfInstance(const Place& place, uint32_t instance) {
  return place.generation >> kInstanceShift == FirstGeneration(instance) >> kInstanceShift;
}

struct Route {
  Version version = 0;
  uint64_t size = 0;
  uint64_t checksum = 0;
  bool has_checksum = false;
  bool soft_pin = false;
  std::vector<Place> replicas;
};

struct KeyedRoute {
  KeyRef ref;  // `ref.key` views `key`.
  std::string key;
  Route route;
  uint64_t published_ms = 0;  // As in Age; 0: not known.
};

inline constexpr size_t kNameSizeMax = 512;  // Of a node's name.

// Small stable numbers for node names, so that a replica is 24 bytes. Append-only, bounded.
// Thread-safe.
class NameTable {
 public:
  explicit NameTable(std::string self);
  // nullopt: the table is full (kNamesMax, kBytesMax) or the name is malformed.
  std::optional<NameIndex> IndexOf(std::string_view name);
  // nullopt: the name is not in the table. Adds nothing.
  std::optional<NameIndex> Find(std::string_view name) const;
  std::string NameOf(NameIndex index) const;
  size_t size() const;

 private:
  static constexpr size_t kNamesMax = 1 << 20;
  static constexpr size_t kBytesMax = 64 << 20;  // Of all names.
  mutable base::Mutex mu_;
  std::unordered_map<std::string, NameIndex> index_ MC_GUARDED_BY(mu_);
  std::vector<std::string> names_ MC_GUARDED_BY(mu_);
  size_t bytes_ MC_GUARDED_BY(mu_) = 0;
};

// Of the three fields of a scope together; peers and callers can name no larger one.
inline constexpr size_t kScopeSizeMax = 4096;

// Small stable numbers for scopes, with the hash seed of each. Append-only, bounded.
// Thread-safe.
class ScopeTable {
 public:
  struct Entry {
    ScopeIndex index = 0;
    uint64_t seed = 0;
  };
  // nullopt: the table is full (kScopesMax, kBytesMax), or the scope is too large.
  std::optional<Entry> Intern(const routing::Scope& scope);
  // For what a peer asks of a key and stores nothing: adds nothing. A scope that nothing was stored
  // in here has kNoScope, with its seed. nullopt: the scope is too large.
  std::optional<Entry> Look(const routing::Scope& scope) const;
  routing::Scope ScopeOf(ScopeIndex index) const;
  size_t size() const;

 private:
  static constexpr size_t kScopesMax = 1 << 20;
  static constexpr size_t kBytesMax = 64 << 20;  // Of all scopes.
  mutable base::Mutex mu_;
  std::unordered_map<std::string, Entry> index_ MC_GUARDED_BY(mu_);
  std::vector<routing::Scope> scopes_ MC_GUARDED_BY(mu_);
  size_t bytes_ MC_GUARDED_BY(mu_) = 0;
};

inline KeyRef MakeKeyRef(ScopeTable::Entry scope, std::string_view key) {
  return {routing::KeyHash(scope.seed, key), scope.index, key};
}

// "stable_id:epoch" -> NodeId. kInvalidArgument names the text.
Result<NodeId> ParseNodeName(std::string_view name);

}  // namespace mooncake::node

// MissReasons: what an authority remembers about keys that it has no route for, so that a miss can
// be told with its reason. Two tables of fixed size; a key's place follows from its hash, and a
// newer key takes it over: the reason is then unknown. A key whose route was dropped for a takeover
// and did not come back counts as lost with its owner, though a caller may have removed it at the
// authority in between. Thread-safe, without a lock.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string_view>

#include "node/types.h"

namespace mooncake::node {

class MissReasons {
 public:
  MissReasons() : tables_(std::make_unique<Tables>()) {}

  // A route was published. Forgets why an earlier one went.
  void NotePublished(const KeyRef& ref);
  // A caller removed the key: it is absent, for no other reason.
  void NoteRemoved(const KeyRef& ref);
  // Its last replica was evicted (kItemEvicted), or went with its owner (kItemOwnerGone).
  void NoteLost(uint64_t key_hash, ItemCode why);

  // Of a key without a route: kItemEvicted, kItemOwnerGone, kItemOtherScope or kNotFound's code.
  ItemCode WhyAbsent(const KeyRef& ref) const;

 private:
  static constexpr size_t kPlaces = size_t{1} << 14;
  // All relaxed: an entry stands for itself. 0: free.
  using Table = std::array<std::atomic<uint64_t>, kPlaces>;
  struct Tables {
    Table lost{};       // By the key's hash: the hash, with the reason in the low bits.
    Table published{};  // By the hash of the key's text alone, with the scope in the low bits.
  };
  static std::atomic<uint64_t>& PlaceOf(Table& table, uint64_t hash);
  void ForgetLost(uint64_t key_hash);

  std::unique_ptr<Tables> tables_;
};

}  // namespace mooncake::node

// Room: what is known of the free space of storage nodes, so that a value goes where it pushes
// nothing out, as long as there is such a place (ADR 21). Estimates, no promises: whoever turns
// out to be full makes room or refuses, as ever.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "routing/view.h"

namespace mooncake::node {

struct Core;
struct KeyRef;

// Of the other nodes, from their replies. Without a recent one a node counts as empty, so that it
// is asked again. Thread-safe.
class RoomTable {
 public:
  static constexpr uint64_t kRecentMs = 2'000;
  // How long it counts at all what a node has said of itself, or that it did not answer.
  static constexpr uint64_t kForgetMs = 30'000;

  // `low_watermark_percent`: up to where a node is filled before others are preferred.
  explicit RoomTable(uint32_t low_watermark_percent) : low_percent_(low_watermark_percent) {}

  // The process `instance` (as in its lease) says how many bytes it takes before it is that full.
  void Told(uint32_t instance, uint64_t room, uint64_t now_ms);
  template <typename Reply>
  void Heard(const routing::ViewNode& sender, const Reply& reply, uint64_t now_ms) {
    if (reply.has_room()) Told(sender.lease.instance, reply.room(), now_ms);
  }
  // It did not answer: nothing goes there for its room alone until it does.
  void Failed(const routing::ViewNode& node, uint64_t now_ms);
  bool Has(const routing::ViewNode& node, uint64_t size, uint64_t now_ms) const;
  // As Has, of who is written to in any case; what there is room for is taken off until the node's
  // next reply.
  bool Take(const routing::ViewNode& node, uint64_t size, uint64_t now_ms);
  // Of the values that full nodes would have to make room for, the part that may go to others: all
  // where half of the storage nodes have room, else so much that those get no more than 1.75 times
  // their share. `self_has_room`: whether the node `self`, if it is one of them, has.
  double SpillShare(const routing::ClusterView& view, const std::string& pool,
                    routing::NodeIndex self, bool self_has_room, uint64_t now_ms);

 private:
  static constexpr size_t kEntriesMax = 16'384;
  static constexpr uint64_t kShareMs = 100;  // How long a share is good.
  struct Entry {
    uint64_t told = 0;  // By the last reply.
    uint64_t told_until_ms = 0;
    uint64_t room = 0;
    uint64_t until_ms = 0;
    uint64_t failed_until_ms = 0;
  };
  uint64_t RoomLocked(const routing::ViewNode& node, uint64_t now_ms) const MC_REQUIRES(mu_);
  // As far as is known.
  bool IsFullLocked(const routing::ViewNode& node, uint64_t now_ms) const MC_REQUIRES(mu_);
  // Nullptr: it cannot be told apart from others.
  Entry* EntryLocked(uint32_t instance) MC_REQUIRES(mu_);

  const uint32_t low_percent_;
  mutable base::Mutex mu_;
  std::unordered_map<uint32_t, Entry> entries_ MC_GUARDED_BY(mu_);
  double share_ MC_GUARDED_BY(mu_) = 0;
  uint64_t share_until_ms_ MC_GUARDED_BY(mu_) = 0;
  uint64_t share_revision_ MC_GUARDED_BY(mu_) = 0;  // Of its view.
};

// One request's view of it, with what the request itself will take of this node. Not thread-safe.
class RoomPlan {
 public:
  explicit RoomPlan(Core& core);

  // `node` kNoNode: this one.
  bool Has(const routing::ClusterView& view, routing::NodeIndex node, uint64_t size);
  void Take(const routing::ClusterView& view, routing::NodeIndex node, uint64_t size);

 private:
  uint64_t& own();

  Core& core_;
  const uint64_t now_ms_;
  std::optional<uint64_t> own_;
};

// How many bytes this node takes before `percent` of its active segments are used.
uint64_t OwnRoom(const Core& core, uint32_t percent);
// A call to it failed. What is the caller's own trouble tells nothing of the node.
void NoteFailed(Core& core, const routing::ViewNode& node);
// Whether the value would push something out of this node: it reaches the high watermark.
bool FillsThisNode(const Core& core, uint64_t size);
// Whether this key is of the part that may go elsewhere for want of room: always the same keys, as
// long as as many nodes have room.
bool MaySpill(Core& core, const routing::ClusterView& view, uint64_t key_hash);
// Whether it is, and another node than `but` (kNoNode: this one), among those where copies of this
// key may go, has room.
bool FitsElsewhere(Core& core, const routing::ClusterView& view, const KeyRef& ref, uint64_t size,
                   routing::NodeIndex but);

}  // namespace mooncake::node

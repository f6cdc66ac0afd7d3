// Migration: gives a value a further replica in named segments (copy), or one in place of the
// one that it has in a named segment (move). The new replicas are written first and published
// only while the key still has the version that was read, so a concurrent put or remove wins and
// the migration is planned anew. All targets or none; nothing is evicted for them. Carried out
// twice, the second time does nothing.
#pragma once

#include <string>
#include <vector>

#include "node/core.h"

namespace mooncake::node {

inline constexpr size_t kMigrationTargetsMax = 16;
inline constexpr size_t kSegmentNameMax = 1024;  // Bytes, of a name in an order.

struct MigrationOrder {
  routing::Scope scope;
  std::string key;
  bool move = false;  // Else copy.
  std::string source_segment;
  std::vector<std::string> target_segments;  // Of distinct nodes; exactly one of a move.
};

// kInvalidArgument: names what is wrong with the order's form.
Status CheckOrder(const MigrationOrder& order);

// Carries the order out on this node, which reads the value and writes the replicas.
// kNotFound: no such key, no replica in the source segment, or no active segment of a target's
// name. kInvalidState: a target's node holds the value in another segment. kNoSpace: a target is
// full. kConflict: the key kept changing.
Status Migrate(Core& core, const MigrationOrder& order, uint64_t deadline_ms);

// Whether the route of the key already looks as the order wants it.
Result<bool> IsMigrated(Core& core, const MigrationOrder& order, uint64_t deadline_ms);

// The name of the node that owns the replica in the source segment: who carries an order out when
// nobody is named. This node, where nothing is left to do.
Result<std::string> SourceOwner(Core& core, const MigrationOrder& order, uint64_t deadline_ms);

}  // namespace mooncake::node

// Writing values. Where a value goes:
//
//   fused   one copy on the key's authority: one round trip reserves, writes and publishes,
//   own     one copy in this node's segment, then a publish,
//   placed  copies on chosen owners, written in parallel, then a publish.
//
// Fused is the rule for routed writes without a policy; own for prefer_local and for
// routed_writes=false; placed for everything else, and for values that their authority has no
// room for. Fewer distinct owners than copies asked for: as many copies as there are owners, at
// least one, counted in `replica_shortfall_total`.
#pragma once

#include <span>
#include <vector>

#include "mooncake/store.h"
#include "node/core.h"

namespace mooncake::node {

struct WriteItem {
  KeyRef ref;
  std::span<const ConstBytes> parts;
  uint64_t size = 0;
};

struct WriteOptions {
  const ReplicateConfig* replicate = nullptr;
  bool if_absent = false;
  uint64_t deadline_ms = 0;
};

// One status per item.
std::vector<Status> WriteValues(Core& core, std::span<const WriteItem> items,
                                const WriteOptions& options);

}  // namespace mooncake::node

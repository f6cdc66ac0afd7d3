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

#include <functional>
#include <span>
#include <vector>

#include "mooncake/store.h"
#include "node/core.h"

namespace mooncake::node {

// A published value that gets new places: a copy goes to each of the best `copies` targets that
// have room, and the route changes only while it is still of that version.
struct Relocation {
  // Named by its id: while values are read and written, nodes come and go, and what is planned on
  // one view is carried out on another.
  struct Target {
    NodeId node;
    std::string segment;  // Empty: any of the node's.
  };

  Version version = 0;
  std::vector<Place> keep;      // Replicas that stay in the route.
  std::vector<Target> targets;  // Distinct nodes. Empty: just leave the replicas that are kept.
  uint32_t copies = 1;          // At most as many as targets.
  bool all = false;             // All the copies, or the route stays as it is.
};

struct WriteItem {
  KeyRef ref;
  std::span<const ConstBytes> parts;
  uint64_t size = 0;
  // For all items of a request, which may then be of many scopes, or for none.
  const Relocation* relocation = nullptr;
};

struct WriteOptions {
  const ReplicateConfig* replicate = nullptr;
  bool if_absent = false;
  uint64_t deadline_ms = 0;
  // Empty, or whether the caller still waits, so that the bytes of `parts` were its value when
  // they were read. Asked after they were and before they are published; what was sent to another
  // node by then is not published either.
  std::function<bool()> wanted;
};

inline bool IsWanted(const WriteOptions& options) { return !options.wanted || options.wanted(); }
inline Error NotWanted() { return TransportError("the caller gave up"); }

// One status per item.
std::vector<Status> WriteValues(Core& core, std::span<const WriteItem> items,
                                const WriteOptions& options);

}  // namespace mooncake::node

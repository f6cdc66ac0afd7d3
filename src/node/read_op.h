// Reading values: get into given memory, get into memory allocated once the size is known, and
// ranged reads. See Store in mooncake/store.h for what callers are promised.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "mooncake/bytes.h"
#include "mooncake/result.h"
#include "node/core.h"

namespace mooncake::node {

struct ReadItem {
  KeyRef ref;
  std::span<const MutableBytes> targets;  // Unless `allocate` of the request is used.
  uint64_t limit = 0;                     // Total size of the targets, or of the range.
  uint64_t offset = 0;                    // Ranged reads.
};

struct ReadRequest {
  std::span<ReadItem> items;
  bool ranged = false;
  // Empty, or gives the memory for item i once its size is known.
  std::function<std::optional<MutableBytes>(size_t item, uint64_t size)> allocate;
  uint64_t deadline_ms = 0;
};

// One result per item: the size of the value (of the range).
std::vector<Result<uint64_t>> ReadValues(Core& core, const ReadRequest& request);

}  // namespace mooncake::node

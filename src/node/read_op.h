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
  Version known = 0;  // Of a copy that the caller has; with ReadRequest::versions only.

  // Out, with ReadRequest::versions and a good result.
  Version version = 0;  // Of what was read from another node; 0: not known, or from this node.
  uint64_t checksum = 0;
  bool unchanged = false;  // `known` is the current version: nothing was read.
};

struct ReadRequest {
  std::span<ReadItem> items;
  bool ranged = false;
  // Empty, or gives the memory for item i once its size is known.
  std::function<std::optional<MutableBytes>(size_t item, uint64_t size)> allocate;
  uint64_t deadline_ms = 0;
  // Empty, or takes what lies in this node's own memory, instead of a copy of it. For ranged
  // reads the whole value; the range has been checked.
  std::function<void(size_t item, ExtentPin pin)> adopt;
  bool versions = false;  // Fill the items' versions, honour what they know.
};

// One result per item: the size of the value (of the range).
std::vector<Result<uint64_t>> ReadValues(Core& core, const ReadRequest& request);

}  // namespace mooncake::node

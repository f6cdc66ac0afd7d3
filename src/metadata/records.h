// How the records of the metadata service are written: JSON for leases and the route policy,
// words for states. Parsing is strict and bounded: whatever bytes a service hands back, the
// result is a record or kMetadata. Unknown fields are ignored, so that minor versions can add.
//
// Pure functions, thread-safe.
#pragma once

#include <string>
#include <string_view>

#include "metadata/metadata_store.h"

namespace mooncake::metadata {

// The largest epoch that a service may be asked to keep: Redis scripts count in doubles.
inline constexpr uint64_t kEpochMax = (uint64_t{1} << 53) - 2;

// "standby", "active", "draining", "sealed", "offline".
std::string_view NodeStateName(NodeState state);
// The reverse; case and surrounding space do not matter. kInvalidArgument lists the words.
Result<NodeState> ParseNodeState(std::string_view text);

// kInvalidArgument: the record breaks a limit or holds text that is not UTF-8.
Result<std::string> LeaseToJson(const LeaseRecord& record);
Result<LeaseRecord> LeaseFromJson(std::string_view json);

Result<std::string> RoutePolicyToJson(const RoutePolicy& policy);
Result<RoutePolicy> RoutePolicyFromJson(std::string_view json);

// A lease as services keep it: `core` is what others act on, so that comparing two of them tells
// whether the revision has to grow, and `usage` is the rest.
struct EncodedLease {
  std::string core;   // JSON, without epoch, usage and suspicion.
  std::string usage;  // used_bytes of the segments in their order: "4096,0".
};
Result<EncodedLease> EncodeLease(const LeaseRecord& record);
// kMetadata also when `core` is about another stable_id than `id`.
Result<LeaseRecord> DecodeLease(const NodeId& id, const EncodedLease& encoded, bool suspect);

// Splits "stable_id:epoch" at the last colon. kMetadata: no such text.
Result<NodeId> ParseNodeId(std::string_view text);

// The checks that every adapter does first; kInvalidArgument names the argument.
Status CheckLease(const LeaseRecord& record, uint64_t ttl_ms);
Status CheckDocument(std::string_view name, std::string_view text);

// "worker-1:7 at 10.0.0.1:4000", for conflicts.
std::string DescribeHolder(const LeaseRecord& record);

}  // namespace mooncake::metadata

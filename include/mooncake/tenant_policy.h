// TenantPolicy: what a tenant may do in the whole cluster, kept in the metadata service and
// followed by every node. Store::SetTenantPolicy, GetTenantPolicy and DeleteTenantPolicy work on
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace mooncake {

struct TenantPolicy {
  // The quota: how much of the tenant, over all its domains and object sets, may be stored at a
  // time. No value: no limit. A put that would go beyond it is refused with kConflict and changes
  // nothing; overwrites that do not grow, and removals, always pass. A policy that is set below
  // what is stored removes nothing, it only refuses growth.
  std::optional<uint64_t> max_bytes;    // Of values, times their replicas.
  std::optional<uint64_t> max_objects;  // Keys that have a value.
  // Whether the tenant's own oldest values make room for a put that would be refused otherwise: as
  // many as it needs, soft-pinned ones last, none of what is being put. A value that is larger than
  // the whole quota is refused and removes nothing. kInvalidArgument when true without a limit.
  bool evict_within_tenant = false;

  bool operator==(const TenantPolicy&) const = default;
};

struct TenantPolicyRecord {
  TenantPolicy policy;
  uint64_t version = 0;        // Grows with every change.
  uint64_t updated_at_ms = 0;  // Since 1970.
  std::string updated_by;      // "stable_id:epoch", or who an administrator's tool says it is.
};

}  // namespace mooncake

// How the policies of tenants are written: one JSON document each, whose version is the policy's.
// Watched, so that a change reaches all nodes with the next view (MetadataStore::kWatchedPrefix).
//
//   system/tenant-policy/tenants/<tenant>
//   {"scope": {"tenant": "a"}, "updated_at_ms": 17, "updated_by": "n:1", "removed": false,
//    "spec": {"quota": {"max_bytes": 1024, "max_objects": 2, "evict_within_tenant": false}}}
//
// A policy that was deleted leaves a record with `removed`: then what is absent was lost with the
// service's data, and those who know it put it back.
//
// Pure functions, thread-safe.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/metadata_store.h"
#include "mooncake/tenant_policy.h"

namespace mooncake::metadata {

inline constexpr std::string_view kTenantPolicyPrefix = "system/tenant-policy/tenants/";
inline constexpr size_t kPolicyTenantBytesMax = 900;

// kInvalidArgument: empty, or longer than kPolicyTenantBytesMax.
Result<std::string> TenantPolicyName(std::string_view tenant);

struct KnownPolicy {
  TenantPolicyRecord record;
  bool removed = false;
};

// kInvalidArgument: it is to evict without a limit, or text that is not UTF-8.
Result<std::string> TenantPolicyToJson(std::string_view tenant, const KnownPolicy& policy);
// kMetadata: malformed. Unknown fields are ignored.
Result<KnownPolicy> TenantPolicyFromJson(const MetadataStore::Document& document);

}  // namespace mooncake::metadata

#include "metadata/tenant_policy.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace mooncake::metadata {

namespace {

using nlohmann::json;

constexpr size_t kRecordBytesMax = 16 * 1024;

Error Malformed(std::string_view why) {
  return MetadataError(
      fmt::format("the metadata service holds a malformed tenant policy: {}", why));
}

// A limit; absent: none. False: it is there, and no number.
bool ReadLimit(const json& quota, const char* name, std::optional<uint64_t>* out) {
  const auto found = quota.find(name);
  if (found == quota.end() || found->is_null()) return true;
  const auto* number = found->get_ptr<const json::number_unsigned_t*>();
  if (number != nullptr) *out = *number;
  return number != nullptr;
}

bool ReadFlag(const json& object, const char* name, bool* out) {
  const auto found = object.find(name);
  if (found == object.end()) return true;
  const auto* flag = found->get_ptr<const json::boolean_t*>();
  if (flag != nullptr) *out = *flag;
  return flag != nullptr;
}

}  // namespace

Result<std::string> TenantPolicyName(std::string_view tenant) {
  if (tenant.empty()) return InvalidArgument("tenant: empty");
  if (tenant.size() > kPolicyTenantBytesMax) {
    return InvalidArgument(fmt::format("tenant: {} bytes, a policy takes at most {}", tenant.size(),
                                       kPolicyTenantBytesMax));
  }
  return std::string(kTenantPolicyPrefix) + std::string(tenant);
}

Result<std::string> TenantPolicyToJson(std::string_view tenant, const KnownPolicy& policy) {
  const TenantPolicy& spec = policy.record.policy;
  if (spec.evict_within_tenant && !spec.max_bytes && !spec.max_objects) {
    return InvalidArgument(
        "quota.evict_within_tenant=true: expected max_bytes or max_objects to make room for");
  }
  json quota = {{"evict_within_tenant", spec.evict_within_tenant}};
  if (spec.max_bytes) quota["max_bytes"] = *spec.max_bytes;
  if (spec.max_objects) quota["max_objects"] = *spec.max_objects;
  const json record = {{"scope", {{"tenant", tenant}}},
                       {"updated_at_ms", policy.record.updated_at_ms},
                       {"updated_by", policy.record.updated_by},
                       {"removed", policy.removed},
                       {"spec", {{"quota", std::move(quota)}}}};
  std::string text;
  try {
    text = record.dump();
  } catch (const json::exception&) {  // The only cause is text that is not UTF-8.
    return InvalidArgument("tenant policy: text that is not UTF-8");
  }
  if (text.size() > kRecordBytesMax) {
    return InvalidArgument(
        fmt::format("tenant policy: {} bytes, at most {} allowed", text.size(), kRecordBytesMax));
  }
  return text;
}

Result<KnownPolicy> TenantPolicyFromJson(const MetadataStore::Document& document) {
  if (document.text.size() > kRecordBytesMax) return Malformed("too long");
  const json value = json::parse(document.text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) return Malformed("not a JSON object");
  KnownPolicy known;
  TenantPolicyRecord& record = known.record;
  record.version = document.version;
  const auto at = value.find("updated_at_ms");
  if (at != value.end() && at->is_number_unsigned()) record.updated_at_ms = at->get<uint64_t>();
  const auto by = value.find("updated_by");
  if (by != value.end() && by->is_string()) record.updated_by = by->get<std::string>();
  if (!ReadFlag(value, "removed", &known.removed)) return Malformed("removed");
  const auto spec = value.find("spec");
  if (spec == value.end() || !spec->is_object()) return Malformed("spec");
  const auto quota = spec->find("quota");
  if (quota == spec->end()) return known;
  if (!quota->is_object()) return Malformed("spec.quota");
  const bool good = ReadLimit(*quota, "max_bytes", &record.policy.max_bytes) &&
                    ReadLimit(*quota, "max_objects", &record.policy.max_objects) &&
                    ReadFlag(*quota, "evict_within_tenant", &record.policy.evict_within_tenant);
  if (!good) return Malformed("spec.quota");
  return known;
}

}  // namespace mooncake::metadata

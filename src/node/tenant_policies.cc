// The part of Node that writes the policies of tenants and follows them.
#include <algorithm>

#include "node/node.h"
#include "node/takeover.h"

namespace mooncake::node {

namespace {
constexpr int kTriesMax = 8;  // Against others who change the same policy.
constexpr uint64_t kFollowMs = 3'000;
}  // namespace

void Node::ApplyNewView(const ViewPtr& before, const ViewPtr& after) {
  // From here until all is counted, what this node tells of quotas is of no view.
  const uint64_t begun = meter_.BeginCount();
  meter_.Install(membership_->tenant_policies());
  ApplyView(*core_, arrivals_, *before, *after);
  routes_->Recount();
  meter_.EndCount(begun, after->revision());
}

Result<TenantPolicyRecord> Node::GetTenantPolicy(std::string_view tenant) {
  MC_TRY(const std::string name, metadata::TenantPolicyName(tenant));
  MC_TRY(const MetadataStore::Document document, ports_.metadata.GetDocument(name));
  if (document.version == 0) return NotFound("tenant " + std::string(tenant) + " has no policy");
  MC_TRY(metadata::KnownPolicy known, metadata::TenantPolicyFromJson(document));
  if (known.removed) return NotFound("tenant " + std::string(tenant) + " has no policy");
  return std::move(known.record);
}

Result<uint64_t> Node::PutTenantPolicy(std::string_view tenant, metadata::KnownPolicy policy,
                                       std::optional<uint64_t> expected_version) {
  MC_TRY(const std::string name, metadata::TenantPolicyName(tenant));
  policy.record.updated_at_ms = ports_.runtime.WallMs();
  policy.record.updated_by = membership_->self_name();
  MC_TRY(const std::string text, metadata::TenantPolicyToJson(tenant, policy));
  Result<uint64_t> version = MetadataError("tenant policy: not written");
  for (int attempt = 0; attempt < kTriesMax; ++attempt) {
    MC_TRY(const MetadataStore::Document current, ports_.metadata.GetDocument(name));
    uint64_t shown = current.version;
    if (shown != 0) {
      const auto known = metadata::TenantPolicyFromJson(current);
      if (known.ok() && known->removed) shown = 0;
    }
    if (policy.removed && shown == 0) {
      return NotFound("tenant " + std::string(tenant) + " has no policy");
    }
    if (expected_version && *expected_version != shown) {
      return Conflict("tenant " + std::string(tenant) + ": its policy has version " +
                      std::to_string(shown) + ", expected was " +
                      std::to_string(*expected_version));
    }
    version = ports_.metadata.PutDocument(name, text, current.version);
    if (version.ok() || version.code() != ErrorCode::kConflict) break;
  }
  if (!version.ok()) return version;
  const Result<uint64_t> revision = ports_.metadata.Poll();
  if (revision.ok()) {
    membership_->RefreshTo(*revision, ports_.runtime.NowMs() + kFollowMs);
    TellAll(*revision);
  }
  return version;
}

Result<uint64_t> Node::SetTenantPolicy(std::string_view tenant, const TenantPolicy& policy,
                                       std::optional<uint64_t> expected_version) {
  return PutTenantPolicy(tenant, {.record = {.policy = policy}}, expected_version);
}

Status Node::DeleteTenantPolicy(std::string_view tenant, std::optional<uint64_t> expected_version) {
  MC_RETURN_IF_ERROR(PutTenantPolicy(tenant, {.removed = true}, expected_version));
  return Ok();
}

}  // namespace mooncake::node

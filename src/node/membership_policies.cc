// The part of Membership that follows the policies of tenants.
#include "node/membership.h"
#include "obs/log.h"

namespace mooncake::node {

// After the changes of the membership were read, so that a view never has a revision whose policies
// are not known. `lost_some`: the service may have come back empty. What it does not have any more
// is put back then; a policy that was deleted leaves a record.
Status Membership::FetchTenantPolicies(bool lost_some) {
  MC_TRY(const auto documents, metadata_.ListDocuments(std::string(metadata::kTenantPolicyPrefix)));
  std::map<std::string, std::string> texts;
  TenantMeter::Policies policies;
  for (const MetadataStore::NamedDocument& named : documents) {
    auto policy = metadata::TenantPolicyFromJson(named.document);
    if (!policy.ok()) {
      obs::LogRateLimited(obs::LogLevel::kWarning, "membership.tenant_policy",
                          named.name + ": " + policy.error().ToString());
      continue;
    }
    const std::string tenant = named.name.substr(metadata::kTenantPolicyPrefix.size());
    policies.emplace(tenant, *std::move(policy));
    texts.emplace(named.name, named.document.text);
  }
  if (lost_some) {
    for (const auto& [name, text] : tenant_policy_texts_) {
      if (texts.contains(name)) continue;
      // A conflict: another node was faster.
      (void)metadata_.PutDocument(name, text, 0);
      const std::string tenant = name.substr(metadata::kTenantPolicyPrefix.size());
      policies.emplace(tenant, tenant_policies_.at(tenant));
      texts.emplace(name, text);
    }
  }
  tenant_policies_ = std::move(policies);
  tenant_policy_texts_ = std::move(texts);
  return Ok();
}

}  // namespace mooncake::node

// The part of Membership that follows the policies of tenants.
#include "node/membership.h"
#include "obs/log.h"

namespace mooncake::node {

// After the changes of the membership were read, so that a view never has a revision whose policies
// are not known. `lost_some`: the service may have come back empty. What it does not have any more
// is put back then; a policy that was deleted leaves a record. One that cannot be read, as it is of
// a newer version or damaged, lifts no limit: the last one of that tenant stays in force.
Status Membership::FetchTenantPolicies(bool lost_some) {
  MC_TRY(const auto documents, metadata_.ListDocuments(std::string(metadata::kTenantPolicyPrefix)));
  std::map<std::string, std::string> texts;
  TenantMeter::Policies policies;
  const auto tenant_of = [](const std::string& name) {
    return name.substr(metadata::kTenantPolicyPrefix.size());
  };
  const auto keep_last = [&](const std::string& tenant) {
    const auto last = tenant_policies_.find(tenant);
    if (last != tenant_policies_.end()) policies.insert(*last);
  };
  for (const MetadataStore::NamedDocument& named : documents) {
    texts.emplace(named.name, named.document.text);
    auto policy = metadata::TenantPolicyFromJson(named.document);
    if (policy.ok()) {
      policies.emplace(tenant_of(named.name), *std::move(policy));
      continue;
    }
    obs::LogRateLimited(obs::LogLevel::kWarning, "membership.tenant_policy",
                        named.name + ": " + policy.error().ToString());
    keep_last(tenant_of(named.name));
  }
  if (lost_some) {
    for (const auto& [name, text] : tenant_policy_texts_) {
      if (texts.contains(name)) continue;
      // A conflict: another node was faster.
      (void)metadata_.PutDocument(name, text, 0);
      keep_last(tenant_of(name));
      texts.emplace(name, text);
    }
  }
  tenant_policies_ = std::move(policies);
  tenant_policy_texts_ = std::move(texts);
  return Ok();
}

}  // namespace mooncake::node

#include "mooncake/store.h"

#include "mooncake/observability.h"

namespace mooncake {

namespace {

// What the call is called, unless somebody above has named it.
std::string_view NameOr(std::string_view otherwise) {
  const std::string_view name = ApiScope::OfThread().name;
  return name.empty() ? otherwise : name;
}

Error NotANode(const char* method) {
  return Unsupported(std::string(method) + " is not available in dummy mode");
}

}  // namespace

Result<SegmentInfo> Store::ExpandLocalMemory(uint64_t) { return NotANode("expand_local_memory"); }
Status Store::DrainSegment(const std::string&) { return NotANode("drain_segment"); }
Result<bool> Store::RetireSegment(const std::string&) { return NotANode("retire_segment"); }
Result<uint64_t> Store::EvacuateOwnedReplicas() { return NotANode("evacuate_owned_replicas"); }
Result<HandoffPlan> Store::PlanHandoff(std::optional<uint64_t>, std::optional<uint64_t>) {
  return NotANode("plan_handoff");
}
Result<uint64_t> Store::SetTenantPolicy(std::string_view, const TenantPolicy&,
                                        std::optional<uint64_t>) {
  return NotANode("set_tenant_policy");
}
Result<TenantPolicyRecord> Store::GetTenantPolicy(std::string_view) {
  return NotANode("get_tenant_policy");
}
Status Store::DeleteTenantPolicy(std::string_view, std::optional<uint64_t>) {
  return NotANode("delete_tenant_policy");
}

Status Store::Put(std::string_view key, ConstBytes value, const PutOptions& options) {
  const ApiScope scope(NameOr("put"));
  const PutItem item{key, {&value, 1}};
  return std::move(PutMany({&item, 1}, options)[0]);
}

Result<std::string> Store::Get(std::string_view key, std::string_view tenant) {
  const ApiScope scope(NameOr("get"));
  std::string value;
  auto result = GetManyAllocated({&key, 1}, tenant, [&](size_t, uint64_t size) {
    value.resize(size);
    return std::optional(MutableBytesAt(value.data(), value.size()));
  });
  if (!result[0].ok()) return std::move(result[0]).error();
  return value;
}

Result<uint64_t> Store::GetInto(std::string_view key, MutableBytes target,
                                std::string_view tenant) {
  const ApiScope scope(NameOr("get_into"));
  const GetItem item{key, {&target, 1}};
  return std::move(GetMany({&item, 1}, tenant)[0]);
}

Result<bool> Store::Exists(std::string_view key, std::string_view tenant) {
  const ApiScope scope(NameOr("is_exist"));
  MC_TRY(const Existence existence, std::move(ExistMany({&key, 1}, tenant)[0]));
  return existence == Existence::kPresent;
}

Status Store::Remove(std::string_view key, std::string_view tenant) {
  const ApiScope scope(NameOr("remove"));
  return std::move(RemoveMany({&key, 1}, tenant)[0]);
}

}  // namespace mooncake

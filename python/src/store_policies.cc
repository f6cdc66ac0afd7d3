// Policies of tenants: quotas, for the whole cluster.
#include <array>
#include <optional>
#include <string>

#include "store_object.h"

namespace mooncake::python {
namespace {

constexpr Signature<5> kSet{
    "set_tenant_policy",
    {"tenant", "max_bytes", "max_objects", "evict_within_tenant", "expected_version"},
    1,
    1};
constexpr Signature<1> kGet{"get_tenant_policy", {"tenant"}, 1, 1};
constexpr Signature<2> kDelete{"delete_tenant_policy", {"tenant", "expected_version"}, 1, 1};

// An int; absent or None: none.
bool OptionalFrom(PyObject* object, const Where& where, std::optional<uint64_t>* number) {
  if (object == nullptr || object == Py_None) return true;
  uint64_t value = 0;
  if (!UnsignedFrom(object, where, &value)) return false;
  *number = value;
  return true;
}

PyObject* SetTenantPolicy(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 5> given;
  std::string_view tenant;
  TenantPolicy policy;
  std::optional<uint64_t> expected;
  if (!ParseArgs(kSet, args, given) || !StrFrom(given[0], {kSet.method, "tenant"}, &tenant) ||
      !OptionalFrom(given[1], {kSet.method, "max_bytes"}, &policy.max_bytes) ||
      !OptionalFrom(given[2], {kSet.method, "max_objects"}, &policy.max_objects) ||
      !FlagFrom(given[3], &policy.evict_within_tenant) ||
      !OptionalFrom(given[4], {kSet.method, "expected_version"}, &expected)) {
    return nullptr;
  }
  const Call call(self, kSet.method);
  if (!call) return nullptr;
  Result<uint64_t> version = uint64_t{0};
  {
    WithoutGil released;
    version = call->SetTenantPolicy(tenant, policy, expected);
  }
  if (!version.ok()) return Raise(version.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromUnsignedLongLong(*version);
}

// None for no limit.
Ref LimitObject(const std::optional<uint64_t>& limit) {
  if (limit) return Ref(PyLong_FromUnsignedLongLong(*limit));
  Py_INCREF(Py_None);
  return Ref(Py_None);
}

PyObject* GetTenantPolicy(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 1> given;
  std::string_view tenant;
  if (!ParseArgs(kGet, args, given) || !StrFrom(given[0], {kGet.method, "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, kGet.method);
  if (!call) return nullptr;
  Result<TenantPolicyRecord> record = NotFound({});
  {
    WithoutGil released;
    record = call->GetTenantPolicy(tenant);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (record.code() == ErrorCode::kNotFound) Py_RETURN_NONE;
  if (!record.ok()) return Raise(record.error());
  const Ref max_bytes = LimitObject(record->policy.max_bytes);
  const Ref max_objects = LimitObject(record->policy.max_objects);
  if (!max_bytes || !max_objects) return nullptr;
  return Py_BuildValue("{s:K,s:K,s:s,s:{s:O,s:O,s:O}}", "version",
                       static_cast<unsigned long long>(record->version), "updated_at_ms",
                       static_cast<unsigned long long>(record->updated_at_ms), "updated_by",
                       record->updated_by.c_str(), "quota", "max_bytes", max_bytes.get(),
                       "max_objects", max_objects.get(), "evict_within_tenant",
                       record->policy.evict_within_tenant ? Py_True : Py_False);
}

PyObject* DeleteTenantPolicy(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  std::string_view tenant;
  std::optional<uint64_t> expected;
  if (!ParseArgs(kDelete, args, given) || !StrFrom(given[0], {kDelete.method, "tenant"}, &tenant) ||
      !OptionalFrom(given[1], {kDelete.method, "expected_version"}, &expected)) {
    return nullptr;
  }
  const Call call(self, kDelete.method);
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->DeleteTenantPolicy(tenant, expected);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (!status.ok() && status.code() != ErrorCode::kNotFound) return Raise(status.error());
  return PyBool_FromLong(status.ok() ? 1 : 0);
}

const PyMethodDef kMethods[] = {
    Method<SetTenantPolicy>(
        "set_tenant_policy",
        "set_tenant_policy($self, tenant, *, max_bytes=None, max_objects=None,\n"
        "evict_within_tenant=False, expected_version=None)\n--\n\n"
        "Set the quota of a tenant for the whole cluster: bytes of values times their replicas, "
        "and\n"
        "keys. None: no limit. Every node that answers follows it when this returns. Returns the\n"
        "policy's version. evict_within_tenant: the tenant's own oldest values make room for a put "
        "that\n"
        "would be refused. ValueError: that without a limit. RuntimeError: expected_version (0: "
        "no\n"
        "policy yet) is not the one in force, or the metadata service did not answer.\n\nExample:\n"
        "    >>> store.set_tenant_policy(\"team-a\", max_bytes=64 << 30)\n"
        "    1764507600000\n"),
    Method<GetTenantPolicy>(
        "get_tenant_policy",
        "get_tenant_policy($self, tenant)\n--\n\n"
        "The policy of a tenant as a dict with version, updated_at_ms, updated_by and quota, or "
        "None.\n"
        "RuntimeError: the metadata service did not answer."
        "\n\nExample:\n"
        "    >>> store.get_tenant_policy(\"team-a\")[\"quota\"][\"max_bytes\"]\n"
        "    68719476736\n"),
    Method<DeleteTenantPolicy>(
        "delete_tenant_policy",
        "delete_tenant_policy($self, tenant, *, expected_version=None)\n--\n\n"
        "Take the policy of a tenant away. True: done. False: it has none. RuntimeError as of\n"
        "set_tenant_policy."
        "\n\nExample:\n"
        "    >>> store.delete_tenant_policy(\"team-a\")\n"
        "    True\n"),
};

}  // namespace

std::span<const PyMethodDef> PolicyMethods() { return kMethods; }

}  // namespace mooncake::python

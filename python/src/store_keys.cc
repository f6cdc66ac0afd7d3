// Questions about keys, and their removal: no value passes through here.
#include "store_object.h"

namespace mooncake::python {
namespace {

// A list with one int for each item of a batch. `code` gives the number of a result, and sets
// its second argument when an exception is set instead.
template <typename Results, typename Code>
PyObject* ListOf(const Results& results, Code code) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(results.size())));
  for (size_t i = 0; list && i < results.size(); ++i) {
    bool raises = false;
    const long number = code(results[i], &raises);
    PyObject* item = raises ? nullptr : PyLong_FromLong(number);
    if (item == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return PyErr_Occurred() != nullptr ? nullptr : list.Release();
}

// The arguments (key, tenant) that most of these methods take.
bool ParseKey(const char* method, const CallArgs& args, std::string_view* key,
              std::string_view* tenant) {
  const Signature<2> signature{method, {"key", "tenant"}, 1, 1};
  std::array<PyObject*, 2> given;
  return ParseArgs(signature, args, given) && KeyFrom(given[0], {method, "key"}, key) &&
         TextFrom(given[1], {method, "tenant"}, tenant);
}

PyObject* IsExist(PyObject* self, const CallArgs& args) {
  std::string_view key;
  std::string_view tenant;
  if (!ParseKey("is_exist", args, &key, &tenant)) return nullptr;
  const Call call(self, "is_exist");
  if (!call) return nullptr;
  Result<bool> exists = false;
  {
    WithoutGil released;
    exists = call->Exists(key, tenant);
  }
  if (exists.ok()) {
    return PyErr_Occurred() != nullptr ? nullptr : PyBool_FromLong(*exists ? 1 : 0);
  }
  return call.Raises(exists.error()) ? nullptr : PyBool_FromLong(0);
}

constexpr Signature<2> kBatchIsExist{"batch_is_exist", {"keys", "tenant"}, 1, 1};

PyObject* BatchIsExist(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  std::string_view tenant;
  if (!ParseArgs(kBatchIsExist, args, given) ||
      !TextFrom(given[1], {"batch_is_exist", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Ref tuple = TupleFrom(given[0], {"batch_is_exist", "keys"});
  std::vector<std::string_view> keys;
  if (!tuple || !KeysFrom(tuple.get(), {"batch_is_exist", "keys"}, &keys)) return nullptr;
  const Call call(self, "batch_is_exist");
  if (!call) return nullptr;
  std::vector<Result<Existence>> results;
  {
    WithoutGil released;
    results = call->ExistMany(keys, tenant);
  }
  return ListOf(results, [&call](const Result<Existence>& result, bool* raises) {
    if (result.ok()) return static_cast<long>(*result);
    if (result.code() == ErrorCode::kNotFound) return 0L;
    *raises = call.RaisesForItem(result.error());
    return CodeOf(result.error());
  });
}

PyObject* GetSize(PyObject* self, const CallArgs& args) {
  std::string_view key;
  std::string_view tenant;
  if (!ParseKey("get_size", args, &key, &tenant)) return nullptr;
  const Call call(self, "get_size");
  if (!call) return nullptr;
  Result<uint64_t> size = uint64_t{0};
  {
    WithoutGil released;
    size = call->GetSize(key, tenant);
  }
  if (!size.ok()) return call.Raises(size.error()) ? nullptr : PyLong_FromLong(-1);
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromUnsignedLongLong(*size);
}

// The number that one removal reports.
long RemovalCode(const Call& call, const Status& status, bool force, bool* raises) {
  if (status.ok()) return 0;
  if (status.code() == ErrorCode::kNotFound) return force ? 0 : -1;
  *raises = call.RaisesForItem(status.error());
  return CodeOf(status.error());
}

constexpr Signature<3> kRemove{"remove", {"key", "force", "tenant"}, 2, 1};

PyObject* Remove(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 3> given;
  std::string_view key;
  std::string_view tenant;
  bool force = false;
  if (!ParseArgs(kRemove, args, given) || !KeyFrom(given[0], {"remove", "key"}, &key) ||
      !FlagFrom(given[1], &force) || !TextFrom(given[2], {"remove", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, "remove");
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->Remove(key, tenant);
  }
  bool raises = PyErr_Occurred() != nullptr;
  const long code = raises ? 0 : RemovalCode(call, status, force, &raises);
  return raises ? nullptr : PyLong_FromLong(code == 0 ? 0 : -1);
}

constexpr Signature<3> kBatchRemove{"batch_remove", {"keys", "force", "tenant"}, 2, 1};

PyObject* BatchRemove(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 3> given;
  std::string_view tenant;
  bool force = false;
  if (!ParseArgs(kBatchRemove, args, given) || !FlagFrom(given[1], &force) ||
      !TextFrom(given[2], {"batch_remove", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Ref tuple = TupleFrom(given[0], {"batch_remove", "keys"});
  std::vector<std::string_view> keys;
  if (!tuple || !KeysFrom(tuple.get(), {"batch_remove", "keys"}, &keys)) return nullptr;
  const Call call(self, "batch_remove");
  if (!call) return nullptr;
  std::vector<Status> statuses;
  {
    WithoutGil released;
    statuses = call->RemoveMany(keys, tenant);
  }
  return ListOf(statuses, [&call, force](const Status& status, bool* raises) {
    return RemovalCode(call, status, force, raises);
  });
}

constexpr Signature<2> kRemoveAll{"remove_all", {"force", "tenant"}, 1, 0};

PyObject* RemoveAll(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  std::string_view tenant;
  if (!ParseArgs(kRemoveAll, args, given) ||
      !TextFrom(given[1], {"remove_all", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, "remove_all");
  if (!call) return nullptr;
  Result<uint64_t> removed = uint64_t{0};
  {
    WithoutGil released;
    removed = call->RemoveAll(tenant);
  }
  if (!removed.ok()) return Raise(removed.error());
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromUnsignedLongLong(*removed);
}

const PyMethodDef kMethods[] = {
    Method<IsExist>(
        "is_exist",
        "is_exist($self, key, *, tenant=None)\n--\n\n"
        "Whether the key has a value. False also when that cannot be told now." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.is_exist(\"key\")\n"
        "    True\n"),
    Method<BatchIsExist>("batch_is_exist",
                         "batch_is_exist($self, keys, *, tenant=None)\n--\n\n"
                         "1 for each key that has a value, 0 for each that has none, a negative\n"
                         "code where it could not be told." MC_CALL_ERRORS "\n\nExample:\n"
                         "    >>> store.batch_is_exist([\"key\", \"missing\"])\n"
                         "    [1, 0]\n"),
    Method<GetSize>(
        "get_size",
        "get_size($self, key, *, tenant=None)\n--\n\n"
        "The size of the value in bytes, which is not read; -1 when there is none." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.get_size(\"key\")\n"
        "    5\n"),
    Method<Remove>("remove",
                   "remove($self, key, force=False, *, tenant=None)\n--\n\n"
                   "Remove a key. Returns 0, or -1 when it is missing (0 with force=True) or\n"
                   "could not be removed." MC_CALL_ERRORS "\n\nExample:\n"
                   "    >>> store.remove(\"key\")\n"
                   "    0\n"),
    Method<BatchRemove>("batch_remove",
                        "batch_remove($self, keys, force=False, *, tenant=None)\n--\n\n"
                        "remove() for many keys; one status for each." MC_CALL_ERRORS
                        "\n\nExample:\n"
                        "    >>> store.batch_remove([\"key\", \"missing\"])\n"
                        "    [0, -1]\n"),
    Method<RemoveAll>("remove_all",
                      "remove_all($self, force=False, *, tenant=None)\n--\n\n"
                      "Remove every key of the store's tenant, domain and object_set from the\n"
                      "whole cluster. Returns how many there were." MC_CALL_ERRORS "\n\nExample:\n"
                      "    >>> store.remove_all()\n"
                      "    12\n"),
};

}  // namespace

std::span<const PyMethodDef> KeyMethods() { return kMethods; }

}  // namespace mooncake::python

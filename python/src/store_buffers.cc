// Registered memory: registration, and values read from and written to one range each.
#include "mooncake/memory_hold.h"
#include "pointers.h"
#include "replicate.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

constexpr Signature<2> kRegister{"register_buffer", {"ptr", "size"}, 2, 2};

PyObject* RegisterBuffer(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  uint64_t address = 0;
  uint64_t size = 0;
  if (!ParseArgs(kRegister, args, given) ||
      !UnsignedFrom(given[0], {"register_buffer", "ptr"}, &address) ||
      !UnsignedFrom(given[1], {"register_buffer", "size"}, &size)) {
    return nullptr;
  }
  const Call call(self, "register_buffer");
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->RegisterBuffer(reinterpret_cast<void*>(address), size);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status.ok()) return PyLong_FromLong(0);
  LogSoftFailure("register_buffer", status.error());
  return PyLong_FromLong(-1);
}

constexpr Signature<2> kUnregister{"unregister_buffer", {"ptr", "size"}, 2, 1};

PyObject* UnregisterBuffer(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 2> given;
  uint64_t address = 0;
  std::optional<size_t> size;
  uint64_t given_size = 0;
  if (!ParseArgs(kUnregister, args, given) ||
      !UnsignedFrom(given[0], {"unregister_buffer", "ptr"}, &address) ||
      (given[1] != nullptr &&
       !UnsignedFrom(given[1], {"unregister_buffer", "size"}, &given_size))) {
    return nullptr;
  }
  if (given[1] != nullptr) size = given_size;
  const Call call(self, "unregister_buffer");
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->UnregisterBuffer(reinterpret_cast<void*>(address), size);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status.ok()) return PyLong_FromLong(0);
  LogSoftFailure("unregister_buffer", status.error());
  return PyLong_FromLong(-1);
}

PyObject* PutOne(PyObject* self, const CallArgs& args, const char* method) {
  const Signature<5> signature{method, {"key", "ptr", "size", "config", "tenant"}, 4, 3};
  std::array<PyObject*, 5> given;
  std::string_view key;
  uint64_t address = 0;
  uint64_t size = 0;
  PutSettings settings;
  if (!ParseArgs(signature, args, given) || !KeyFrom(given[0], {method, "key"}, &key) ||
      !UnsignedFrom(given[1], {method, "ptr"}, &address) ||
      !UnsignedFrom(given[2], {method, "size"}, &size) ||
      !settings.Parse(method, given[3], given[4])) {
    return nullptr;
  }
  const Call call(self, method);
  if (!call) return nullptr;
  const MemoryHold hold(*call.store());
  if (!MayTouch(*call.store(), address, size, Use::kSource)) {
    LogRefused(method, address, size, Use::kSource);
    call->CountRefused();
    return PyLong_FromLong(-1);
  }
  Status status;
  {
    WithoutGil released;
    status = call->Put(key, SourceAt(address, size), settings.options);
  }
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status.ok()) return PyLong_FromLong(0);
  return call.Raises(status.error()) ? nullptr : PyLong_FromLong(-1);
}

PyObject* PutFrom(PyObject* self, const CallArgs& args) { return PutOne(self, args, "put_from"); }

PyObject* UpsertFrom(PyObject* self, const CallArgs& args) {
  return PutOne(self, args, "upsert_from");
}

constexpr Signature<4> kGetInto{"get_into", {"key", "ptr", "size", "tenant"}, 3, 3};

PyObject* GetInto(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 4> given;
  std::string_view key;
  std::string_view tenant;
  uint64_t address = 0;
  uint64_t size = 0;
  if (!ParseArgs(kGetInto, args, given) || !KeyFrom(given[0], {"get_into", "key"}, &key) ||
      !UnsignedFrom(given[1], {"get_into", "ptr"}, &address) ||
      !UnsignedFrom(given[2], {"get_into", "size"}, &size) ||
      !TextFrom(given[3], {"get_into", "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, "get_into");
  if (!call) return nullptr;
  const MemoryHold hold(*call.store());
  if (!MayTouch(*call.store(), address, size, Use::kTarget)) {
    LogRefused("get_into", address, size, Use::kTarget);
    call->CountRefused();
    return PyLong_FromLong(kRefusedCode);
  }
  Result<uint64_t> got = uint64_t{0};
  {
    WithoutGil released;
    got = call->GetInto(key, TargetAt(address, size), tenant);
  }
  if (!got.ok()) return call.Raises(got.error()) ? nullptr : PyLong_FromLong(CodeOf(got.error()));
  return PyErr_Occurred() != nullptr ? nullptr : PyLong_FromUnsignedLongLong(*got);
}

// A batch that is parsed: what may be sent, and a number for each item.
struct Prepared {
  std::vector<std::string_view> keys;
  std::vector<uint64_t> ptrs;
  std::vector<uint64_t> sizes;
  std::vector<size_t> sent;  // Positions of the items that may be sent.
  std::vector<int64_t> numbers;
};

bool Prepare(const char* method, const RawBatch& batch, Prepared* prepared) {
  if (!KeysFrom(batch.keys.get(), {method, "keys"}, &prepared->keys) ||
      !UnsignedsFrom(batch.ptrs.get(), {method, "ptrs"}, &prepared->ptrs) ||
      !UnsignedsFrom(batch.sizes.get(), {method, "sizes"}, &prepared->sizes)) {
    return false;
  }
  prepared->numbers.assign(prepared->keys.size(), kRefusedCode);
  prepared->sent.reserve(prepared->keys.size());
  return true;
}

// Finds the items whose memory may be touched. Without the GIL, under a hold.
void Select(const Call& call, Use use, Prepared* prepared) {
  for (size_t i = 0; i < prepared->keys.size(); ++i) {
    if (MayTouch(*call.store(), prepared->ptrs[i], prepared->sizes[i], use)) {
      prepared->sent.push_back(i);
    } else {
      LogRefused(call.method(), prepared->ptrs[i], prepared->sizes[i], use);
    }
  }
}

constexpr Signature<5> kBatchPutFrom{
    "batch_put_from", {"keys", "ptrs", "sizes", "config", "tenant"}, 4, 1};

PyObject* BatchPutFrom(PyObject* self, const CallArgs& args) {
  constexpr const char* kMethod = "batch_put_from";
  std::array<PyObject*, 5> given;
  PutSettings settings;
  RawBatch batch;
  Prepared prepared;
  if (!ParseArgs(kBatchPutFrom, args, given) || !settings.Parse(kMethod, given[3], given[4]) ||
      !RawBatchFrom(kMethod, given[0], given[1], given[2], &batch) ||
      !Prepare(kMethod, batch, &prepared)) {
    return nullptr;
  }
  settings.options.if_absent = true;
  const Call call(self, kMethod);
  if (!call) return nullptr;
  std::vector<Status> statuses;
  {
    WithoutGil released;
    const MemoryHold hold(*call.store());
    Select(call, Use::kSource, &prepared);
    std::vector<ConstBytes> parts(prepared.sent.size());
    std::vector<PutItem> items(prepared.sent.size());
    for (size_t i = 0; i < prepared.sent.size(); ++i) {
      const size_t from = prepared.sent[i];
      parts[i] = SourceAt(prepared.ptrs[from], prepared.sizes[from]);
      items[i] = {prepared.keys[from], {&parts[i], 1}};
    }
    statuses = call->PutMany(items, settings.options);
  }
  if (!FillStatuses(call, prepared.sent, statuses, &prepared.numbers)) return nullptr;
  return ListFromNumbers(prepared.numbers);
}

constexpr Signature<4> kBatchGetInto{"batch_get_into", {"keys", "ptrs", "sizes", "tenant"}, 3, 1};

PyObject* BatchGetInto(PyObject* self, const CallArgs& args) {
  constexpr const char* kMethod = "batch_get_into";
  std::array<PyObject*, 4> given;
  std::string_view tenant;
  RawBatch batch;
  Prepared prepared;
  if (!ParseArgs(kBatchGetInto, args, given) || !TextFrom(given[3], {kMethod, "tenant"}, &tenant) ||
      !RawBatchFrom(kMethod, given[0], given[1], given[2], &batch) ||
      !Prepare(kMethod, batch, &prepared)) {
    return nullptr;
  }
  const Call call(self, kMethod);
  if (!call) return nullptr;
  std::vector<Result<uint64_t>> sizes;
  {
    WithoutGil released;
    const MemoryHold hold(*call.store());
    Select(call, Use::kTarget, &prepared);
    std::vector<MutableBytes> targets(prepared.sent.size());
    std::vector<GetItem> items(prepared.sent.size());
    for (size_t i = 0; i < prepared.sent.size(); ++i) {
      const size_t from = prepared.sent[i];
      targets[i] = TargetAt(prepared.ptrs[from], prepared.sizes[from]);
      items[i] = {prepared.keys[from], {&targets[i], 1}};
    }
    sizes = call->GetMany(items, tenant);
  }
  if (!FillSizes(call, prepared.sent, sizes, &prepared.numbers)) return nullptr;
  return ListFromNumbers(prepared.numbers);
}

const PyMethodDef kMethods[] = {
    Method<RegisterBuffer>("register_buffer",
                           "register_buffer($self, ptr, size)\n--\n\n"
                           "Let the pointer calls use this memory. Registrations nest.\n"
                           "Returns 0, or -1 with the reason in the log." MC_CALL_ERRORS
                           "\n\nExample:\n"
                           "    >>> store.register_buffer(array.ctypes.data, array.nbytes)\n"
                           "    0\n"),
    Method<UnregisterBuffer>(
        "unregister_buffer",
        "unregister_buffer($self, ptr, size=None)\n--\n\n"
        "Undo the last register_buffer of ptr, or of ptr with this size; waits for transfers\n"
        "that use the memory.\n"
        "Returns 0, or -1: the pointer is not registered, or the transfers did not end within\n"
        "the request timeout, and it stays registered." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.unregister_buffer(array.ctypes.data)\n"
        "    0\n"),
    Method<PutFrom>("put_from",
                    "put_from($self, key, ptr, size, config=None, *, tenant=None)\n--\n\n"
                    "put() of registered memory. Returns 0 or -1." MC_CALL_ERRORS "\n\nExample:\n"
                    "    >>> store.register_buffer(ptr, size)\n"
                    "    0\n"
                    "    >>> store.put_from(\"key\", ptr, size)\n"
                    "    0\n"),
    Method<UpsertFrom>("upsert_from",
                       "upsert_from($self, key, ptr, size, config=None, *, tenant=None)\n--\n\n"
                       "The same as put_from." MC_CALL_ERRORS "\n\nExample:\n"
                       "    >>> store.upsert_from(\"key\", ptr, size)\n"
                       "    0\n"),
    Method<GetInto>(
        "get_into",
        "get_into($self, key, ptr, size, *, tenant=None)\n--\n\n"
        "Read a value into registered memory. Returns its size in bytes, -1 when there\n"
        "is no value, or another negative code: -2 the memory is not registered, -4 a\n"
        "peer did not answer, -10 wrong bytes, -11 the value is larger than size." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.get_into(\"key\", ptr, capacity)\n"
        "    5\n"),
    Method<BatchPutFrom>(
        "batch_put_from",
        "batch_put_from($self, keys, ptrs=None, sizes=None, config=None, *, "
        "tenant=None)\n--\n\n"
        "Store values from registered memory unless their keys have one: three\n"
        "lists, or one of (key, ptr, size). Returns 0 or a negative code each." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.batch_put_from([\"a\", \"b\"], [ptr, ptr + 64], [64, 64])\n"
        "    [0, 0]\n"),
    Method<BatchGetInto>(
        "batch_get_into",
        "batch_get_into($self, keys, ptrs=None, sizes=None, *, "
        "tenant=None)\n--\n\n"
        "Read values into registered memory: three lists, or one of\n"
        "(key, ptr, size). Returns the size in bytes or a negative code each, as get_into\n"
        "does." MC_CALL_ERRORS "\n\nExample:\n"
        "    >>> store.batch_get_into([\"a\", \"missing\"], [ptr, ptr + 64], [64, 64])\n"
        "    [64, -1]\n"),
};

}  // namespace

std::span<const PyMethodDef> BufferMethods() { return kMethods; }

}  // namespace mooncake::python

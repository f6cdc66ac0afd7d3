// Writing values that Python objects hold: put, put_parts, batch_put and their other names.
#include <memory>

#include "replicate.h"
#include "store_object.h"
#include "values.h"

namespace mooncake::python {
namespace {

// The number for one value, or nullptr with an exception set.
PyObject* OneStatus(const Call& call, const Status& status) {
  if (PyErr_Occurred() != nullptr) return nullptr;
  if (status.ok()) return PyLong_FromLong(0);
  return call.Raises(status.error()) ? nullptr : PyLong_FromLong(-1);
}

PyObject* PutValue(PyObject* self, const CallArgs& args, const char* method) {
  const Signature<4> signature{method, {"key", "value", "config", "tenant"}, 3, 2};
  std::array<PyObject*, 4> given;
  if (!ParseArgs(signature, args, given)) return nullptr;
  std::string_view key;
  HeldBytes value;
  PutSettings settings;
  if (!KeyFrom(given[0], {method, "key"}, &key) || !value.Hold(given[1], {method, "value"}) ||
      !settings.Parse(method, given[2], given[3])) {
    return nullptr;
  }
  const Call call(self, method);
  if (!call) return nullptr;
  Status status;
  {
    WithoutGil released;
    status = call->Put(key, value.bytes(), settings.options);
  }
  return OneStatus(call, status);
}

PyObject* Put(PyObject* self, const CallArgs& args) { return PutValue(self, args, "put"); }

PyObject* Upsert(PyObject* self, const CallArgs& args) { return PutValue(self, args, "upsert"); }

// The keywords of put_parts, whose parts are all the other positional arguments.
constexpr Signature<2> kPutParts{"put_parts", {"config", "tenant"}, 0, 0};

PyObject* PutParts(PyObject* self, const CallArgs& args) {
  if (args.positional < 1) return RaiseType("put_parts() missing required argument: 'key'");
  std::array<PyObject*, 2> given;
  const CallArgs keywords{args.values + args.positional, 0, args.keywords};
  if (!ParseArgs(kPutParts, keywords, given)) return nullptr;
  std::string_view key;
  PutSettings settings;
  if (!KeyFrom(args.values[0], {"put_parts", "key"}, &key) ||
      !settings.Parse("put_parts", given[0], given[1])) {
    return nullptr;
  }
  const size_t count = args.positional - 1;
  const auto held = std::make_unique<HeldBytes[]>(count);
  std::vector<ConstBytes> parts(count);
  for (size_t i = 0; i < count; ++i) {
    const Where here{"put_parts", "parts", static_cast<Py_ssize_t>(i)};
    if (!held[i].Hold(args.values[i + 1], here)) return nullptr;
    parts[i] = held[i].bytes();
  }
  const Call call(self, "put_parts");
  if (!call) return nullptr;
  const PutItem item{key, parts};
  Status status;
  {
    WithoutGil released;
    status = std::move(call->PutMany({&item, 1}, settings.options).front());
  }
  return OneStatus(call, status);
}

// One status for the batch: the first failure is reported, the other items are stored.
PyObject* PutValues(PyObject* self, const char* method, PyObject* keys, PyObject* values,
                    const PutSettings& settings) {
  if (!SameLength(method, "keys", keys, "values", values)) return nullptr;
  std::vector<std::string_view> names;
  if (!KeysFrom(keys, {method, "keys"}, &names)) return nullptr;
  const auto held = std::make_unique<HeldBytes[]>(names.size());
  std::vector<ConstBytes> parts(names.size());
  std::vector<PutItem> items(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const Where here{method, "values", static_cast<Py_ssize_t>(i)};
    if (!held[i].Hold(PyTuple_GET_ITEM(values, i), here)) return nullptr;
    parts[i] = held[i].bytes();
    items[i] = {names[i], {&parts[i], 1}};
  }
  const Call call(self, method);
  if (!call) return nullptr;
  std::vector<Status> statuses;
  {
    WithoutGil released;
    statuses = call->PutMany(items, settings.options);
  }
  for (const Status& status : statuses) {
    if (!status.ok()) return OneStatus(call, status);
  }
  return OneStatus(call, Ok());
}

constexpr Signature<5> kBatchPut{
    "batch_put", {"items", "keys", "values", "config", "tenant"}, 1, 0};

PyObject* BatchPut(PyObject* self, const CallArgs& args) {
  std::array<PyObject*, 5> given;
  PutSettings settings;
  if (!ParseArgs(kBatchPut, args, given) || !settings.Parse("batch_put", given[3], given[4])) {
    return nullptr;
  }
  const bool lists = given[1] != nullptr && given[2] != nullptr;
  const bool any_list = given[1] != nullptr || given[2] != nullptr;
  if (lists ? given[0] != nullptr : any_list || given[0] == nullptr) {
    return RaiseType("batch_put() takes either items or both keys= and values=");
  }
  if (lists) {
    const Ref keys = TupleFrom(given[1], {"batch_put", "keys"});
    const Ref values = keys ? TupleFrom(given[2], {"batch_put", "values"}) : Ref();
    return values ? PutValues(self, "batch_put", keys.get(), values.get(), settings) : nullptr;
  }
  Ref columns[2];
  const Ref items = TupleFrom(given[0], {"batch_put", "items"});
  if (!items || !ColumnsFrom(items.get(), {"batch_put", "items"}, 2, columns)) return nullptr;
  return PutValues(self, "batch_put", columns[0].get(), columns[1].get(), settings);
}

PyObject* PutLists(PyObject* self, const CallArgs& args, const char* method) {
  const Signature<4> signature{method, {"keys", "values", "config", "tenant"}, 3, 2};
  std::array<PyObject*, 4> given;
  PutSettings settings;
  if (!ParseArgs(signature, args, given) || !settings.Parse(method, given[2], given[3])) {
    return nullptr;
  }
  const Ref keys = TupleFrom(given[0], {method, "keys"});
  const Ref values = keys ? TupleFrom(given[1], {method, "values"}) : Ref();
  return values ? PutValues(self, method, keys.get(), values.get(), settings) : nullptr;
}

PyObject* PutBatch(PyObject* self, const CallArgs& args) {
  return PutLists(self, args, "put_batch");
}

PyObject* UpsertBatch(PyObject* self, const CallArgs& args) {
  return PutLists(self, args, "upsert_batch");
}

const PyMethodDef kMethods[] = {
    Method<Put>("put",
                "put($self, key, value, config=None, *, tenant=None)\n--\n\n"
                "Store a value, replacing an older one. `value` is any C-contiguous buffer.\n"
                "Returns 0, or -1 when it could not be stored." MC_CALL_ERRORS "\n\nExample:\n"
                "    >>> store.put(\"key\", b\"value\")\n"
                "    0\n"),
    Method<Upsert>("upsert",
                   "upsert($self, key, value, config=None, *, tenant=None)\n--\n\n"
                   "The same as put." MC_CALL_ERRORS "\n\nExample:\n"
                   "    >>> store.upsert(\"key\", b\"newer\")\n"
                   "    0\n"),
    Method<PutParts>(
        "put_parts",
        "put_parts($self, key, *parts, config=None, tenant=None)\n--\n\n"
        "Store the concatenation of the parts as one value. Returns 0 or -1." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.put_parts(\"key\", header, memoryview(payload))\n"
        "    0\n"),
    Method<BatchPut>("batch_put",
                     "batch_put($self, items=None, *, keys=None, values=None, config=None, "
                     "tenant=None)\n--\n\n"
                     "Store many values: [(key, value), ...], or keys= and values=.\n"
                     "Returns 0, or -1 when any of them could not be stored." MC_CALL_ERRORS
                     "\n\nExample:\n"
                     "    >>> store.batch_put([(\"a\", b\"1\"), (\"b\", b\"2\")])\n"
                     "    0\n"),
    Method<PutBatch>("put_batch",
                     "put_batch($self, keys, values, config=None, *, tenant=None)\n--\n\n"
                     "batch_put with two lists." MC_CALL_ERRORS "\n\nExample:\n"
                     "    >>> store.put_batch([\"a\", \"b\"], [b\"1\", b\"2\"])\n"
                     "    0\n"),
    Method<UpsertBatch>("upsert_batch",
                        "upsert_batch($self, keys, values, config=None, *, tenant=None)\n--\n\n"
                        "The same as put_batch." MC_CALL_ERRORS "\n\nExample:\n"
                        "    >>> store.upsert_batch([\"a\", \"b\"], [b\"1\", b\"2\"])\n"
                        "    0\n"),
};

}  // namespace

std::span<const PyMethodDef> PutMethods() { return kMethods; }

}  // namespace mooncake::python

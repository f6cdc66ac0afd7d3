// Reading values into new bytes objects: get, get_buffer, batch_get and their other names.
#include "obs/log.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

// Reads values straight into bytes objects, which are made when their sizes are known.
class Fetch {
 public:
  Fetch(const Call& call, std::span<const std::string_view> keys, std::string_view tenant)
      : call_(call), values_(keys.size()) {
    if (keys.size() == 1) Guess();
    WithoutGil released;
    results_ = call->GetManyAllocated(
        keys, tenant, [this](size_t item, uint64_t size) { return Allocate(item, size); });
  }

  // The value of one item; empty: it could not be read.
  // Sets `raises` when an exception is set instead.
  Ref Take(size_t item, bool* raises) {
    const Result<uint64_t>& result = results_[item];
    *raises = result.ok() ? PyErr_Occurred() != nullptr : call_.RaisesForItem(result.error());
    if (*raises || !result.ok()) return Ref();
    PyObject* bytes = values_[item].Release();
    if (bytes == nullptr) {  // Of size 0, and the store had nothing to write.
      bytes = PyBytes_FromStringAndSize(nullptr, 0);
    } else if (static_cast<uint64_t>(PyBytes_GET_SIZE(bytes)) != *result) {
      _PyBytes_Resize(&bytes, static_cast<Py_ssize_t>(*result));
    }
    *raises = bytes == nullptr;
    return Ref(bytes);
  }

 private:
  // Values are mostly as large as the last one. With memory of that size at hand a single read
  // takes the GIL once instead of twice; that matters where threads wait for it.
  void Guess() {
    if (last_size_ == 0) return;
    values_[0] = Ref(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(last_size_)));
    if (!values_[0]) PyErr_Clear();
  }

  std::optional<MutableBytes> Allocate(size_t item, uint64_t size) {
    if (values_.size() == 1) last_size_ = size <= kGuessMax ? size : 0;
    if (PyObject* guessed = values_[item].get();
        guessed != nullptr && static_cast<uint64_t>(PyBytes_GET_SIZE(guessed)) == size) {
      return MutableBytesAt(PyBytes_AS_STRING(guessed), size);
    }
    WithGil gil;
    const bool fits = size <= static_cast<uint64_t>(PY_SSIZE_T_MAX);
    PyObject* bytes =
        fits ? PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(size)) : nullptr;
    values_[item] = Ref(bytes);
    if (bytes != nullptr) return MutableBytesAt(PyBytes_AS_STRING(bytes), size);
    PyErr_Clear();
    obs::LogRateLimited(obs::LogLevel::kError, "python.get",
                        "no memory for a value of " + std::to_string(size) + " bytes");
    return std::nullopt;
  }

  static constexpr uint64_t kGuessMax = 1 << 20;
  static thread_local uint64_t last_size_;  // Of this thread's last single value; 0: none.

  const Call& call_;
  std::vector<Ref> values_;
  std::vector<Result<uint64_t>> results_;
};

thread_local uint64_t Fetch::last_size_ = 0;

// How an absent value is told.
using Absent = PyObject* (*)();
PyObject* EmptyBytes() { return PyBytes_FromStringAndSize(nullptr, 0); }
PyObject* None() { return Py_NewRef(Py_None); }

// Whether values are given as they are or behind a read-only view.
enum class Form { kBytes, kView };

PyObject* InForm(Form form, Ref value) {
  return form == Form::kBytes ? value.Release() : PyMemoryView_FromObject(value.get());
}

PyObject* GetOne(PyObject* self, const CallArgs& args, const char* method, Form form,
                 Absent absent) {
  const Signature<2> signature{method, {"key", "tenant"}, 1, 1};
  std::array<PyObject*, 2> given;
  std::string_view key;
  std::string_view tenant;
  if (!ParseArgs(signature, args, given) || !KeyFrom(given[0], {method, "key"}, &key) ||
      !TextFrom(given[1], {method, "tenant"}, &tenant)) {
    return nullptr;
  }
  const Call call(self, method);
  if (!call) return nullptr;
  Fetch fetch(call, {&key, 1}, tenant);
  bool raises = false;
  Ref value = fetch.Take(0, &raises);
  if (raises) return nullptr;
  return value ? InForm(form, std::move(value)) : absent();
}

PyObject* GetMany(PyObject* self, const CallArgs& args, const char* method, Form form,
                  Absent absent) {
  const Signature<2> signature{method, {"keys", "tenant"}, 1, 1};
  std::array<PyObject*, 2> given;
  std::string_view tenant;
  if (!ParseArgs(signature, args, given) || !TextFrom(given[1], {method, "tenant"}, &tenant)) {
    return nullptr;
  }
  const Ref tuple = TupleFrom(given[0], {method, "keys"});
  std::vector<std::string_view> keys;
  if (!tuple || !KeysFrom(tuple.get(), {method, "keys"}, &keys)) return nullptr;
  const Call call(self, method);
  if (!call) return nullptr;
  Fetch fetch(call, keys, tenant);
  Ref list(PyList_New(static_cast<Py_ssize_t>(keys.size())));
  for (size_t i = 0; list && i < keys.size(); ++i) {
    bool raises = false;
    Ref value = fetch.Take(i, &raises);
    if (raises) return nullptr;
    PyObject* item = value ? InForm(form, std::move(value)) : absent();
    if (item == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), item);
  }
  return list.Release();
}

PyObject* Get(PyObject* self, const CallArgs& args) {
  return GetOne(self, args, "get", Form::kBytes, EmptyBytes);
}

PyObject* GetBuffer(PyObject* self, const CallArgs& args) {
  return GetOne(self, args, "get_buffer", Form::kView, None);
}

PyObject* BatchGet(PyObject* self, const CallArgs& args) {
  return GetMany(self, args, "batch_get", Form::kBytes, EmptyBytes);
}

PyObject* GetBatch(PyObject* self, const CallArgs& args) {
  return GetMany(self, args, "get_batch", Form::kBytes, EmptyBytes);
}

PyObject* BatchGetBuffer(PyObject* self, const CallArgs& args) {
  return GetMany(self, args, "batch_get_buffer", Form::kView, None);
}

const PyMethodDef kMethods[] = {
    Method<Get>(
        "get",
        "get($self, key, *, tenant=None)\n--\n\n"
        "The value as bytes; b\"\" when there is none or it cannot be read now." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.get(\"key\")\n"
        "    b'value'\n"),
    Method<GetBuffer>("get_buffer",
                      "get_buffer($self, key, *, tenant=None)\n--\n\n"
                      "The value as a read-only memoryview; None when there is none." MC_CALL_ERRORS
                      "\n\nExample:\n"
                      "    >>> view = store.get_buffer(\"key\")\n"
                      "    >>> len(view)\n"
                      "    5\n"),
    Method<BatchGet>(
        "batch_get",
        "batch_get($self, keys, *, tenant=None)\n--\n\n"
        "The values in the order of the keys, b\"\" for each that is missing." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> store.batch_get([\"key\", \"missing\"])\n"
        "    [b'value', b'']\n"),
    Method<GetBatch>("get_batch",
                     "get_batch($self, keys, *, tenant=None)\n--\n\n"
                     "The same as batch_get." MC_CALL_ERRORS "\n\nExample:\n"
                     "    >>> store.get_batch([\"key\", \"missing\"])\n"
                     "    [b'value', b'']\n"),
    Method<BatchGetBuffer>(
        "batch_get_buffer",
        "batch_get_buffer($self, keys, *, tenant=None)\n--\n\n"
        "Like batch_get with read-only memoryviews, None for each missing." MC_CALL_ERRORS
        "\n\nExample:\n"
        "    >>> views = store.batch_get_buffer([\"key\", \"missing\"])\n"
        "    >>> views[1] is None\n"
        "    True\n"),
};

}  // namespace

std::span<const PyMethodDef> GetMethods() { return kMethods; }

}  // namespace mooncake::python

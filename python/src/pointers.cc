#include "pointers.h"

#include <cstdio>
#include <string>

#include "mooncake/observability.h"
#include "obs/log.h"

namespace mooncake::python {

bool MayTouch(const Store& store, uint64_t address, uint64_t size, Use use) {
  if (size == 0) return true;
  const bool wraps = address + size < address;
  if (address == 0 || wraps) return false;
  const auto* const data = reinterpret_cast<const void*>(address);
  return use == Use::kTarget ? store.IsWritable(data, size) : store.IsRegistered(data, size);
}

void LogRefused(const char* method, uint64_t address, uint64_t size, Use use) {
  ++ApiScope::OfThread().refused;
  char text[200];
  std::snprintf(text, sizeof text,
                "memory at 0x%llx of %llu bytes is not registered%s; call register_buffer first, "
                "or use a BufferPool lease",
                static_cast<unsigned long long>(address), static_cast<unsigned long long>(size),
                use == Use::kTarget ? ", or was mapped for reading only when it was" : "");
  obs::LogRateLimited(obs::LogLevel::kWarning, std::string("python.") + method, text);
}

PyObject* ListFromNumbers(const std::vector<int64_t>& numbers) {
  Ref list(PyList_New(static_cast<Py_ssize_t>(numbers.size())));
  for (size_t i = 0; list && i < numbers.size(); ++i) {
    PyObject* number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) return nullptr;
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), number);
  }
  return list.Release();
}

bool FillStatuses(const Call& call, const std::vector<size_t>& sent,
                  const std::vector<Status>& statuses, std::vector<int64_t>* numbers) {
  if (PyErr_Occurred() != nullptr) return false;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (statuses[i].ok()) {
      (*numbers)[sent[i]] = 0;
      continue;
    }
    if (call.RaisesForItem(statuses[i].error())) return false;
    (*numbers)[sent[i]] = CodeOf(statuses[i].error());
  }
  return true;
}

bool FillSizes(const Call& call, const std::vector<size_t>& sent,
               const std::vector<Result<uint64_t>>& sizes, std::vector<int64_t>* numbers) {
  if (PyErr_Occurred() != nullptr) return false;
  for (size_t i = 0; i < sent.size(); ++i) {
    if (sizes[i].ok()) {
      (*numbers)[sent[i]] = static_cast<int64_t>(*sizes[i]);
      continue;
    }
    if (call.RaisesForItem(sizes[i].error())) return false;
    (*numbers)[sent[i]] = CodeOf(sizes[i].error());
  }
  return true;
}

bool RawBatchFrom(const char* method, PyObject* keys, PyObject* ptrs, PyObject* sizes,
                  RawBatch* batch) {
  if ((ptrs == nullptr) != (sizes == nullptr)) {
    RaiseType("%s() takes either one list of (key, ptr, size) or keys, ptrs and sizes", method);
    return false;
  }
  if (ptrs == nullptr) {
    Ref columns[3];
    const Ref items = TupleFrom(keys, {method, "items"});
    if (!items || !ColumnsFrom(items.get(), {method, "items"}, 3, columns)) return false;
    *batch = {std::move(columns[0]), std::move(columns[1]), std::move(columns[2])};
    return true;
  }
  batch->keys = TupleFrom(keys, {method, "keys"});
  if (!batch->keys) return false;
  batch->ptrs = TupleFrom(ptrs, {method, "ptrs"});
  if (!batch->ptrs) return false;
  batch->sizes = TupleFrom(sizes, {method, "sizes"});
  return batch->sizes && SameLength(method, "keys", batch->keys.get(), "ptrs", batch->ptrs.get()) &&
         SameLength(method, "keys", batch->keys.get(), "sizes", batch->sizes.get());
}

}  // namespace mooncake::python

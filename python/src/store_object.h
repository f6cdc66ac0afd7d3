// _store.NativeStore: the Python object over one mooncake::Store, and what all its methods share.
//
// The object is made of the C API alone, as pybind11's dispatch would cost a method of a batch of
// one more than the rest of the binding together.
#pragma once

#include <Python.h>

#include <exception>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "args.h"
#include "errors.h"
#include "gil.h"
#include "mooncake/observability.h"
#include "mooncake/store.h"
#include "object.h"

namespace mooncake::python {

// A call's share in the store: another thread may close it meanwhile, but not destroy it.
class Call {
 public:
  // Sets RuntimeError when the store is not set up, closed, or belongs to a parent process.
  Call(PyObject* self, const char* method);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  explicit operator bool() const { return store_ != nullptr; }
  Store* operator->() const { return store_.get(); }
  const std::shared_ptr<Store>& store() const { return store_; }
  const char* method() const { return method_; }

  // After the store has answered for an item of a batch. True: an exception is set, which the
  // method has to pass on (an interrupt, a store that was closed meanwhile); otherwise the failure
  // was logged and is to be reported as a value.
  bool RaisesForItem(const Error& error) const;
  // The same for a call about one key, where an argument that the store refused raises too.
  bool Raises(const Error& error) const;

 private:
  const char* method_;
  const ApiScope scope_;
  std::shared_ptr<Store> store_;
};

// The stores of this process, closed ones too as long as a call of theirs runs. Needs the GIL.
std::vector<std::shared_ptr<Store>> StoresOfProcess();

// Keeps a share that was inherited by a fork for ever: not even the end of the process may destroy
// the store, whose threads do not exist here and whose sockets and leases are the parent's.
void LeakInherited(std::shared_ptr<Store> store);

// Makes a function of the C API out of one that may throw (std::bad_alloc is what can happen).
template <auto kFunction>
PyObject* Entry(PyObject* self, PyObject* const* values, Py_ssize_t count,
                PyObject* keywords) noexcept {
  try {
    return OrPark([&] { return kFunction(self, CallArgs{values, count, keywords}); });
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::exception& failure) {
    return RaiseRuntime("%s", failure.what());
  }
}

// The part of a method's documentation about what it raises.
#define MC_CALL_ERRORS                                              \
  "\n\nRaises:\n    TypeError, ValueError: an argument is wrong.\n" \
  "    RuntimeError: the store is not set up, or closed."

// A row of a method table. `text` begins with the signature, as inspect reads it.
template <auto kFunction>
PyMethodDef Method(const char* name, const char* text) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Entry<kFunction>)),
          METH_FASTCALL | METH_KEYWORDS, text};
}

// The methods, by the file that has them.
std::span<const PyMethodDef> LifecycleMethods();
std::span<const PyMethodDef> CapacityMethods();
std::span<const PyMethodDef> PolicyMethods();
std::span<const PyMethodDef> PutMethods();
std::span<const PyMethodDef> GetMethods();
std::span<const PyMethodDef> KeyMethods();
std::span<const PyMethodDef> BufferMethods();
std::span<const PyMethodDef> MultiBufferMethods();
std::span<const PyMethodDef> RangeMethods();
std::span<const PyMethodDef> ViewMethods();
std::span<const PyMethodDef> TensorMethods();

// Adds the type to the module. False: an exception is set.
bool AddStoreType(PyObject* module);

}  // namespace mooncake::python

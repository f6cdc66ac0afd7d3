#include "pool_lease.h"

#include "errors.h"
#include "gil.h"
#include "object.h"
#include "store_object.h"

namespace mooncake::python {
namespace {

struct Lease {
  std::shared_ptr<Store> store;  // Not set: released.
  MutableBytes memory;
  uint64_t size = 0;
  uint64_t fork_generation = 0;
};

struct LeaseObject {
  PyObject_HEAD Lease lease;
};

PyTypeObject* g_type = nullptr;

Lease& LeaseOf(PyObject* self) { return reinterpret_cast<LeaseObject*>(self)->lease; }

void GiveBack(Lease& lease) {
  std::shared_ptr<Store> store = std::exchange(lease.store, nullptr);
  if (store == nullptr) return;
  if (lease.fork_generation != ForkGeneration()) {
    LeakInherited(std::move(store));
    return;
  }
  store->LocalPoolRelease(lease.memory);
  if (store.use_count() > 1) return;
  WithoutGil released;
  store.reset();
}

void Dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject *error_type, *error, *traceback;
  PyErr_Fetch(&error_type, &error, &traceback);
  GiveBack(LeaseOf(self));
  std::destroy_at(&LeaseOf(self));
  PyErr_Restore(error_type, error, traceback);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* GetPtr(PyObject* self, void*) {
  const Lease& lease = LeaseOf(self);
  if (lease.store == nullptr) return RaiseRuntime("the lease is closed");
  return PyLong_FromVoidPtr(lease.memory.data());
}

PyObject* GetSize(PyObject* self, void*) {
  const Lease& lease = LeaseOf(self);
  if (lease.store == nullptr) return RaiseRuntime("the lease is closed");
  return PyLong_FromUnsignedLongLong(lease.size);
}

PyObject* Release(PyObject* self, PyObject*) {
  GiveBack(LeaseOf(self));
  Py_RETURN_NONE;
}

PyGetSetDef kGetters[] = {
    {"ptr", GetPtr, nullptr, "The address.", nullptr},
    {"size", GetSize, nullptr, "The size that was asked for.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef kMethods[] = {
    {"release", Release, METH_NOARGS, "release($self)\n--\n\nGive the memory back. Idempotent."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyObject* NewPoolLease(std::shared_ptr<Store> store, MutableBytes memory, uint64_t size) {
  PyObject* self = g_type->tp_alloc(g_type, 0);
  if (self == nullptr) {
    store->LocalPoolRelease(memory);
    return nullptr;
  }
  std::construct_at(&LeaseOf(self), Lease{std::move(store), memory, size, ForkGeneration()});
  return self;
}

bool AddPoolLeaseType(PyObject* module) {
  PyType_Slot slots[] = {
      {Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
      {Py_tp_methods, kMethods},
      {Py_tp_getset, kGetters},
      {Py_tp_doc, const_cast<char*>("A piece of a store's registered pool.")},
      {0, nullptr},
  };
  PyType_Spec spec{"mooncake._store.PoolLease", sizeof(LeaseObject), 0,
                   Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, slots};
  const Ref type(PyType_FromSpec(&spec));
  if (!type || PyModule_AddObjectRef(module, "PoolLease", type.get()) != 0) return false;
  g_type = reinterpret_cast<PyTypeObject*>(Py_NewRef(type.get()));
  return true;
}

}  // namespace mooncake::python

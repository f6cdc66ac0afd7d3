// _store.PoolLease: a piece of a store's registered pool. Its memory stays valid when the store is
// closed, until the lease is released or collected.
#pragma once

#include <Python.h>

#include <memory>

#include "mooncake/store.h"

namespace mooncake::python {

// `size`: what was asked for. nullptr: an exception is set, and the memory was given back.
PyObject* NewPoolLease(std::shared_ptr<Store> store, MutableBytes memory, uint64_t size);

// Adds the type to the module. False: an exception is set.
bool AddPoolLeaseType(PyObject* module);

}  // namespace mooncake::python

// Memory for registered buffers that another process can map too: shared, sealed against
// shrinking, populated when it is given out. Functions of the module, below the Python class
// MooncakeHostMemAllocator.
#pragma once

#include <Python.h>

namespace mooncake::python {

// Adds host_alloc(size, hugepage_size) and host_free(ptr). False: an exception is set.
bool AddHostAllocator(PyObject* module);

}  // namespace mooncake::python

// Memory for registered buffers that another process can map too: shared, sealed against
// shrinking, populated when it is given out, in huge pages where the kernel has some. Functions of
// the module, below the Python class MooncakeHostMemAllocator.
#pragma once

#include <Python.h>

#include <optional>

#include "mooncake/dummy.h"

namespace mooncake::python {

// Adds host_alloc(size, hugepage_size) and host_free(ptr). False: an exception is set.
bool AddHostAllocator(PyObject* module);

// The allocation that a range lies in, if it is one of ours. Needs no GIL.
std::optional<SharedRange> FindHostMemory(const void* data, size_t size);

}  // namespace mooncake::python

// The process's metrics server and trace, as functions of the module.
#pragma once

#include <pybind11/pybind11.h>

namespace mooncake::python {

void AddObservability(pybind11::module_& module);

}  // namespace mooncake::python

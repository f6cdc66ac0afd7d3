// The private native module mooncake._store.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "gil.h"
#include "host_allocator.h"
#include "mooncake/config.h"
#include "mooncake/store.h"
#include "observability.h"
#include "pool_lease.h"
#include "store_object.h"

PYBIND11_MODULE(_store, module) {
  namespace python = mooncake::python;
  module.doc() = "The native part of mooncake.store; private.";
  python::InstallGilHooks();
  mooncake::SetInterruptCheck(python::InterruptRequested);
  if (!python::AddStoreType(module.ptr()) || !python::AddPoolLeaseType(module.ptr()) ||
      !python::AddHostAllocator(module.ptr())) {
    throw pybind11::error_already_set();
  }
  python::AddObservability(module);
  module.def("is_config_name", &mooncake::IsConfigName, pybind11::arg("name"),
             "Whether setup knows a setting of this name.");
  module.def("nearest_config_name", &mooncake::NearestConfigName, pybind11::arg("name"),
             "The known name that is most like this one; empty when none is near.");
  module.def("config_table_markdown", &mooncake::ConfigTableMarkdown,
             "The table of docs/configuration.md.");
}

// ReplicateConfig as Python hands it over: any object with (some of) its attributes.
#pragma once

#include <Python.h>

#include "mooncake/store.h"

namespace mooncake::python {

// The options of one put call. Not copyable: `options` points into it.
class PutSettings {
 public:
  PutSettings() = default;
  PutSettings(const PutSettings&) = delete;
  PutSettings& operator=(const PutSettings&) = delete;

  // `config` and `tenant` may be nullptr. False: an exception is set. The tenant's text is
  // borrowed from its str.
  bool Parse(const char* method, PyObject* config, PyObject* tenant);

  PutOptions options;

 private:
  bool ParseConfig(const char* method, PyObject* config);

  ReplicateConfig replicate_;
};

}  // namespace mooncake::python

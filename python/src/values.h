// Bytes that a caller hands in: held still, without a copy, for the duration of a call.
#pragma once

#include <Python.h>

#include "args.h"
#include "mooncake/bytes.h"

namespace mooncake::python {

// Takes bytes, any C-contiguous object with the buffer protocol, and contiguous tensors in host
// memory (objects with data_ptr()). Created, used and destroyed with the GIL held; the bytes may
// be read without it.
class HeldBytes {
 public:
  HeldBytes() = default;
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes();

  // False: an exception is set. At most once.
  bool Hold(PyObject* object, const Where& where);
  ConstBytes bytes() const { return bytes_; }

 private:
  bool HoldBuffer(PyObject* object, const Where& where);
  bool HoldTensor(PyObject* tensor, const Where& where);

  Ref owner_;
  Py_buffer view_{};  // view_.obj is nullptr when it is not used.
  ConstBytes bytes_;
};

}  // namespace mooncake::python

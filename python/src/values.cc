#include "values.h"

#include "errors.h"

namespace mooncake::python {
namespace {

constexpr char kExpected[] = "bytes or another C-contiguous buffer";

// A call of a method without arguments whose result is an unsigned integer.
bool CallForUnsigned(PyObject* object, const char* method, const Where& where, uint64_t* value) {
  const Ref result(PyObject_CallMethod(object, method, nullptr));
  return result && UnsignedFrom(result.get(), where, value);
}

bool CallForFlag(PyObject* object, const char* method, bool* flag) {
  const Ref result(PyObject_CallMethod(object, method, nullptr));
  return result && FlagFrom(result.get(), flag);
}

// Whether the tensor lies in memory that a CPU can read.
bool IsOnHost(PyObject* tensor, bool* on_host) {
  const Ref device(PyObject_GetAttrString(tensor, "device"));
  if (!device) return false;
  const Ref type(PyObject_GetAttrString(device.get(), "type"));
  if (!type) return false;
  *on_host =
      PyUnicode_Check(type.get()) && PyUnicode_CompareWithASCIIString(type.get(), "cpu") == 0;
  return true;
}

}  // namespace

HeldBytes::~HeldBytes() {
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool HeldBytes::Hold(PyObject* object, const Where& where) {
  if (PyBytes_CheckExact(object)) {
    owner_ = Ref::Borrow(object);
    bytes_ = BytesAt(PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object));
    return true;
  }
  if (PyObject_CheckBuffer(object)) return HoldBuffer(object, where);
  if (PyObject_HasAttrString(object, "data_ptr")) return HoldTensor(object, where);
  return WrongType(where, kExpected, object);
}

bool HeldBytes::HoldBuffer(PyObject* object, const Where& where) {
  if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) != 0) {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
    PyErr_Clear();
    RaiseType("%s must be %s; this %.100s is not C-contiguous", Describe(where).c_str(), kExpected,
              Py_TYPE(object)->tp_name);
    return false;
  }
  bytes_ = BytesAt(view_.buf, view_.len);
  return true;
}

bool HeldBytes::HoldTensor(PyObject* tensor, const Where& where) {
  bool on_host = false;
  bool contiguous = false;
  if (!IsOnHost(tensor, &on_host) || !CallForFlag(tensor, "is_contiguous", &contiguous)) {
    return false;
  }
  if (!on_host || !contiguous) {
    RaiseType("%s must be %s; this tensor is %s", Describe(where).c_str(), kExpected,
              on_host ? "not contiguous" : "not in host memory (register it and use put_from)");
    return false;
  }
  uint64_t address = 0;
  uint64_t count = 0;
  uint64_t element_size = 0;
  if (!CallForUnsigned(tensor, "data_ptr", where, &address) ||
      !CallForUnsigned(tensor, "numel", where, &count) ||
      !CallForUnsigned(tensor, "element_size", where, &element_size)) {
    return false;
  }
  owner_ = Ref::Borrow(tensor);
  bytes_ = BytesAt(reinterpret_cast<const void*>(address), count * element_size);
  return true;
}

}  // namespace mooncake::python

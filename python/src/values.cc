#include "values.h"

#include <string_view>

#include "errors.h"

namespace mooncake::python {
namespace {

constexpr char kExpected[] = "bytes or another C-contiguous buffer";

Ref CallMethod(PyObject* object, const char* method) {
  return Ref(OrPark([=] { return PyObject_CallMethod(object, method, nullptr); }));
}

Ref Attribute(PyObject* object, const char* name) {
  return Ref(OrPark([=] { return PyObject_GetAttrString(object, name); }));
}

// A call of a method without arguments whose result is an unsigned integer.
bool CallForUnsigned(PyObject* object, const char* method, const Where& where, uint64_t* value) {
  const Ref result = CallMethod(object, method);
  return result && UnsignedFrom(result.get(), where, value);
}

bool CallForFlag(PyObject* object, const char* method, bool* flag) {
  const Ref result = CallMethod(object, method);
  return result && FlagFrom(result.get(), flag);
}

// Whether a format (of PEP 3118, as NumPy and ctypes write it) has elements that are addresses:
// of Python objects, texts, functions or other memory. They mean nothing where they are read back.
bool HasAddresses(std::string_view format) {
  bool in_name = false;  // ":name:" follows a field of a structure.
  for (size_t i = 0; i < format.size(); ++i) {
    const char code = format[i];
    if (code == ':') in_name = !in_name;
    if (in_name) continue;
    if (code == 'Z') {  // A complex number, if the type of its parts follows.
      const char next = i + 1 < format.size() ? format[i + 1] : '\0';
      if (next != 'e' && next != 'f' && next != 'd' && next != 'g') return true;
    }
    if (std::string_view("O&PXz").find(code) != std::string_view::npos) return true;
  }
  return false;
}

// Whether a NumPy array has elements that are Python objects. Other objects: no.
bool HasObjects(PyObject* array, bool* has) {
  Ref flag;
  if (PyObject_HasAttrString(array, "dtype")) {
    const Ref type = Attribute(array, "dtype");
    if (!type) return false;
    if (PyObject_HasAttrString(type.get(), "hasobject")) {
      flag = Attribute(type.get(), "hasobject");
      if (!flag) return false;
    }
  }
  return FlagFrom(flag.get(), has);
}

// The tensor itself, or where it is a view that only says "negated" or "conjugated", a tensor whose
// memory holds the values.
Ref Resolved(PyObject* tensor) {
  Ref resolved = Ref::Borrow(tensor);
  for (const char* method : {"resolve_conj", "resolve_neg"}) {
    if (resolved && PyObject_HasAttrString(resolved.get(), method)) {
      resolved = CallMethod(resolved.get(), method);
    }
  }
  return resolved;
}

// Whether the tensor lies in memory that a CPU can read.
bool IsOnHost(PyObject* tensor, bool* on_host) {
  const Ref device = Attribute(tensor, "device");
  if (!device) return false;
  const Ref type = Attribute(device.get(), "type");
  if (!type) return false;
  *on_host =
      PyUnicode_Check(type.get()) && PyUnicode_CompareWithASCIIString(type.get(), "cpu") == 0;
  return true;
}

}  // namespace

HeldBytes::~HeldBytes() {
  // An exporter may be written in Python, as of CPython 3.12.
  if (view_.obj != nullptr) OrPark([this] { PyBuffer_Release(&view_); });
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
  bool has_addresses = false;
  const auto view_as = [&](int flags) {
    return OrPark([&] { return PyObject_GetBuffer(object, &view_, flags); });
  };
  if (view_as(PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0) {
    has_addresses = view_.format != nullptr && HasAddresses(view_.format);
  } else {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
    PyErr_Clear();
    // NumPy has no format for some of its types, for example dates.
    if (!HasObjects(object, &has_addresses)) return false;
    if (view_as(PyBUF_SIMPLE) != 0) {
      if (PyErr_ExceptionMatches(PyExc_MemoryError)) return false;
      PyErr_Clear();
      RaiseType("%s must be %s; this %.100s is not C-contiguous", Describe(where).c_str(),
                kExpected, Py_TYPE(object)->tp_name);
      return false;
    }
  }
  if (has_addresses) {
    RaiseType("%s must be %s; this %.100s holds addresses of this process", Describe(where).c_str(),
              kExpected, Py_TYPE(object)->tp_name);
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
  owner_ = Resolved(tensor);
  if (!owner_) return false;
  tensor = owner_.get();
  uint64_t address = 0;
  uint64_t count = 0;
  uint64_t element_size = 0;
  if (!CallForUnsigned(tensor, "data_ptr", where, &address) ||
      !CallForUnsigned(tensor, "numel", where, &count) ||
      !CallForUnsigned(tensor, "element_size", where, &element_size)) {
    return false;
  }
  bytes_ = BytesAt(reinterpret_cast<const void*>(address), count * element_size);
  return true;
}

}  // namespace mooncake::python

#include "args.h"

#include <string>

#include "errors.h"
#include "mooncake/config.h"
#include "mooncake/store.h"

namespace mooncake::python {
namespace {

constexpr size_t kNotFound = SIZE_MAX;

size_t IndexOf(const SignatureView& signature, PyObject* name) {
  for (size_t i = 0; i < signature.count; ++i) {
    if (PyUnicode_CompareWithASCIIString(name, signature.names[i]) == 0) return i;
    const char* other = signature.other_names[i];
    if (other != nullptr && PyUnicode_CompareWithASCIIString(name, other) == 0) return i;
  }
  return kNotFound;
}

bool ParseKeywords(const SignatureView& signature, const CallArgs& args, PyObject** parsed) {
  const Py_ssize_t count = PyTuple_GET_SIZE(args.keywords);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(args.keywords, i);
    const size_t index = IndexOf(signature, name);
    if (index == kNotFound) {
      RaiseType("%s() got an unexpected keyword argument '%U'", signature.method, name);
      return false;
    }
    if (parsed[index] != nullptr) {
      RaiseType("%s() got multiple values for argument '%U'", signature.method, name);
      return false;
    }
    parsed[index] = args.values[args.positional + i];
  }
  return true;
}

bool IsIterableOfItems(PyObject* object) {
  return !PyUnicode_Check(object) && !PyBytes_Check(object) && !PyByteArray_Check(object);
}

}  // namespace

bool ParseArgs(const SignatureView& signature, const CallArgs& args, PyObject** parsed) {
  if (args.positional > static_cast<Py_ssize_t>(signature.positional)) {
    RaiseType("%s() takes at most %zu positional arguments but %zd were given", signature.method,
              signature.positional, args.positional);
    return false;
  }
  for (Py_ssize_t i = 0; i < args.positional; ++i) parsed[i] = args.values[i];
  if (args.keywords != nullptr && !ParseKeywords(signature, args, parsed)) return false;
  for (size_t i = 0; i < signature.count; ++i) {
    if (i >= signature.required && parsed[i] == Py_None) parsed[i] = nullptr;
    if (i < signature.required && parsed[i] == nullptr) {
      RaiseType("%s() missing required argument: '%s'", signature.method, signature.names[i]);
      return false;
    }
  }
  return true;
}

std::string Describe(const Where& where) {
  std::string text = std::string(where.method) + ": " + where.name;
  if (where.index >= 0) text += "[" + std::to_string(where.index) + "]";
  if (where.inner >= 0) text += "[" + std::to_string(where.inner) + "]";
  return text;
}

bool WrongType(const Where& where, const char* expected, PyObject* got) {
  RaiseType("%s must be %s, got %.100s", Describe(where).c_str(), expected, Py_TYPE(got)->tp_name);
  return false;
}

bool StrFrom(PyObject* object, const Where& where, std::string_view* text) {
  if (!PyUnicode_Check(object)) return WrongType(where, "str", object);
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    if (PyErr_ExceptionMatches(PyExc_UnicodeEncodeError) == 0) return false;
    PyErr_Clear();
    RaiseValue("%s is %.200A; allowed: text that can be written as UTF-8", Describe(where).c_str(),
               object);
    return false;
  }
  *text = {data, static_cast<size_t>(size)};
  return true;
}

bool KeyFrom(PyObject* object, const Where& where, std::string_view* key) {
  if (!StrFrom(object, where, key)) return false;
  if (!key->empty() && key->size() <= kKeySizeMax) return true;
  RaiseValue("%s must be 1 to %zu bytes long in UTF-8, got %zu", Describe(where).c_str(),
             kKeySizeMax, key->size());
  return false;
}

bool TextFrom(PyObject* object, const Where& where, std::string_view* text) {
  *text = {};
  return object == nullptr || object == Py_None || StrFrom(object, where, text);
}

bool NameFrom(PyObject* object, const Where& where, std::string_view* name) {
  if (!StrFrom(object, where, name)) return false;
  if (name->find('\0') == std::string_view::npos) return true;
  RaiseValue("%s is %.200A; allowed: text without NUL", Describe(where).c_str(), object);
  return false;
}

bool UnsignedFrom(PyObject* object, const Where& where, uint64_t* value, uint64_t min,
                  uint64_t max) {
  Ref index;
  if (!PyLong_CheckExact(object)) {
    if (PyBool_Check(object) || !PyIndex_Check(object)) return WrongType(where, "int", object);
    index = Ref(OrPark([object] { return PyNumber_Index(object); }));
    if (!index) return false;
    object = index.get();
  }
  *value = PyLong_AsUnsignedLongLong(object);
  const bool overflows = *value == UINT64_MAX && PyErr_Occurred() != nullptr;
  if (!overflows && *value >= min && *value <= max) return true;
  PyErr_Clear();
  const std::string most = max == UINT64_MAX ? "2**64 - 1" : std::to_string(max);
  RaiseValue("%s must be from %llu to %s, got %S", Describe(where).c_str(),
             static_cast<unsigned long long>(min), most.c_str(), object);
  return false;
}

bool SizeFrom(PyObject* object, const Where& where, uint64_t* bytes) {
  if (!PyUnicode_Check(object)) {
    return PyIndex_Check(object) && !PyBool_Check(object)
               ? UnsignedFrom(object, where, bytes)
               : WrongType(where, "int, or str such as \"16MB\"", object);
  }
  std::string_view text;
  if (!NameFrom(object, where, &text)) return false;
  const Result<uint64_t> parsed = ParseSize(Describe(where), text);
  if (!parsed) {
    Raise(parsed.error());
    return false;
  }
  *bytes = *parsed;
  return true;
}

bool FlagFrom(PyObject* object, bool* flag) {
  const int truth = object == nullptr ? 0 : OrPark([object] { return PyObject_IsTrue(object); });
  *flag = truth > 0;
  return truth >= 0;
}

bool BoolFrom(PyObject* object, const Where& where, bool* flag) {
  constexpr std::string_view kNumPy = "numpy.bool";  // "numpy.bool_" before NumPy 2.
  if (PyBool_Check(object) || std::string_view(Py_TYPE(object)->tp_name).starts_with(kNumPy)) {
    return FlagFrom(object, flag);
  }
  if (!PyIndex_Check(object)) return WrongType(where, "bool", object);
  uint64_t number = 0;
  if (!UnsignedFrom(object, where, &number, 0, 1)) return false;
  *flag = number == 1;
  return true;
}

Ref TupleFrom(PyObject* object, const Where& where) {
  if (PyList_CheckExact(object)) return Ref(PyList_AsTuple(object));
  if (PyTuple_CheckExact(object)) return Ref::Borrow(object);
  Ref iterator(IsIterableOfItems(object) ? PyObject_GetIter(object) : nullptr);
  if (!iterator) {
    PyErr_Clear();
    WrongType(where, "a list", object);
    return Ref();
  }
  return Ref(OrPark([&iterator] { return PySequence_Tuple(iterator.get()); }));
}

bool KeysFrom(PyObject* tuple, const Where& where, std::vector<std::string_view>* keys) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  keys->resize(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Where here{where.method, where.name, i};
    if (!KeyFrom(PyTuple_GET_ITEM(tuple, i), here, &(*keys)[i])) return false;
  }
  return true;
}

bool UnsignedsFrom(PyObject* tuple, const Where& where, std::vector<uint64_t>* values) {
  const Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  values->resize(count);
  for (Py_ssize_t i = 0; i < count; ++i) {
    const Where here = where.index < 0 ? Where{where.method, where.name, i}
                                       : Where{where.method, where.name, where.index, i};
    if (!UnsignedFrom(PyTuple_GET_ITEM(tuple, i), here, &(*values)[i])) return false;
  }
  return true;
}

bool SameLength(const char* method, const char* name, PyObject* tuple, const char* other_name,
                PyObject* other) {
  const Py_ssize_t length = PyTuple_GET_SIZE(tuple);
  const Py_ssize_t other_length = PyTuple_GET_SIZE(other);
  if (length == other_length) return true;
  RaiseValue("%s: %s and %s must be of one length, got %zd and %zd", method, name, other_name,
             length, other_length);
  return false;
}

bool ColumnsFrom(PyObject* rows, const Where& where, size_t count, Ref* columns) {
  const Py_ssize_t length = PyTuple_GET_SIZE(rows);
  for (size_t column = 0; column < count; ++column) {
    columns[column] = Ref(PyTuple_New(length));
    if (!columns[column]) return false;
  }
  for (Py_ssize_t i = 0; i < length; ++i) {
    const Where here{where.method, where.name, i};
    const Ref row = TupleFrom(PyTuple_GET_ITEM(rows, i), here);
    if (!row) return false;
    if (PyTuple_GET_SIZE(row.get()) != static_cast<Py_ssize_t>(count)) {
      RaiseValue("%s must have %zu elements, got %zd", Describe(here).c_str(), count,
                 PyTuple_GET_SIZE(row.get()));
      return false;
    }
    for (size_t column = 0; column < count; ++column) {
      PyObject* element = PyTuple_GET_ITEM(row.get(), column);
      PyTuple_SET_ITEM(columns[column].get(), i, Py_NewRef(element));
    }
  }
  return true;
}

}  // namespace mooncake::python

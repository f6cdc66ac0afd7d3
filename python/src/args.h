// Arguments of native methods, parsed with direct calls of the C API: a batch may hold tens of
// thousands of them. What fails raises TypeError or ValueError with the argument's name, and the
// position where it is one of a list.
#pragma once

#include <Python.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "object.h"

namespace mooncake::python {

// One method's parameters: `positional` of them may be given by position, the first `required`
// must be given, None stands for absent in the others. A parameter may have another name as a
// keyword, or nullptr.
template <size_t kCount>
struct Signature {
  const char* method;
  std::array<const char*, kCount> names;
  size_t positional;
  size_t required;
  std::array<const char*, kCount> other_names{};
};

struct SignatureView {
  const char* method;
  const char* const* names;
  size_t count;
  size_t positional;
  size_t required;
  const char* const* other_names;
};

// The arguments of one call, as METH_FASTCALL | METH_KEYWORDS hands them over. Borrowed.
struct CallArgs {
  PyObject* const* values;
  Py_ssize_t positional;
  PyObject* keywords;  // Tuple of names, or nullptr.
};

bool ParseArgs(const SignatureView& signature, const CallArgs& args, PyObject** parsed);

// Fills `parsed` with borrowed references, nullptr for what is absent. False: an exception is set.
template <size_t kCount>
bool ParseArgs(const Signature<kCount>& signature, const CallArgs& args,
               std::array<PyObject*, kCount>& parsed) {
  parsed.fill(nullptr);
  const SignatureView view{
      signature.method,     signature.names.data(), kCount,
      signature.positional, signature.required,     signature.other_names.data()};
  return ParseArgs(view, args, parsed.data());
}

// Which argument a message is about.
struct Where {
  const char* method;
  const char* name;
  Py_ssize_t index = -1;  // Into the list `name`; negative: the argument itself.
  Py_ssize_t inner = -1;  // Into a list in that list.
};

// "batch_put_from: sizes[3]".
std::string Describe(const Where& where);
// TypeError: "<where> must be <expected>, got <type of got>". Always false.
bool WrongType(const Where& where, const char* expected, PyObject* got);

// A str that UTF-8 can hold; None is none. The view lives as long as the str. Every text of a
// caller comes through here.
bool StrFrom(PyObject* object, const Where& where, std::string_view* text);
// A key: not empty, at most kKeySizeMax bytes in UTF-8.
bool KeyFrom(PyObject* object, const Where& where, std::string_view* key);
// A str, or nullptr and None for the empty text.
bool TextFrom(PyObject* object, const Where& where, std::string_view* text);
// A str without NUL: what has such a name can be named in a message and in the metadata service.
bool NameFrom(PyObject* object, const Where& where, std::string_view* name);
// An int (or anything with __index__, but no bool) from `min` to `max`.
bool UnsignedFrom(PyObject* object, const Where& where, uint64_t* value, uint64_t min = 0,
                  uint64_t max = UINT64_MAX);
// Bytes: such an int, or a text as `setup` takes it ("16MB").
bool SizeFrom(PyObject* object, const Where& where, uint64_t* bytes);
// True and False by Python's rules; absent: false.
bool FlagFrom(PyObject* object, bool* flag);
// A bool of Python or NumPy, or an int that is 0 or 1: a text such as "false" is a mistake.
bool BoolFrom(PyObject* object, const Where& where, bool* flag);

// The items as a tuple of its own, so that another thread cannot change them during the call.
// Takes any iterable but str and bytes-like objects.
Ref TupleFrom(PyObject* object, const Where& where);

bool KeysFrom(PyObject* tuple, const Where& where, std::vector<std::string_view>* keys);
bool UnsignedsFrom(PyObject* tuple, const Where& where, std::vector<uint64_t>* values);

// ValueError unless both tuples are of one length.
bool SameLength(const char* method, const char* name, PyObject* tuple, const char* other_name,
                PyObject* other);

// Turns a list of tuples into tuples of their elements: [(k, p, s), ...] into keys, ptrs, sizes.
// Rows have `count` elements; `columns` gets one tuple for each.
bool ColumnsFrom(PyObject* rows, const Where& where, size_t count, Ref* columns);

}  // namespace mooncake::python

#include "errors.h"

#include <cstdarg>
#include <string>

#include "obs/log.h"

namespace mooncake::python {
namespace {

PyObject* TypeOf(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument: return PyExc_ValueError;
    case ErrorCode::kNotFound: return PyExc_KeyError;
    default: return PyExc_RuntimeError;
  }
}

PyObject* RaiseFormatted(PyObject* type, const char* format, va_list values) {
  PyErr_FormatV(type, format, values);
  return nullptr;
}

}  // namespace

PyObject* Raise(const Error& error) {
  if (PyErr_Occurred() != nullptr) return nullptr;
  const bool says_it_all = error.code == ErrorCode::kInvalidArgument;
  const std::string text = says_it_all ? error.context : error.ToString();
  // A key in it may have any byte, also NUL, and be cut within a character.
  PyObject* message =
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (message == nullptr) return nullptr;
  PyErr_SetObject(TypeOf(error.code), message);
  Py_DECREF(message);
  return nullptr;
}

PyObject* RaiseType(const char* format, ...) {
  va_list values;
  va_start(values, format);
  RaiseFormatted(PyExc_TypeError, format, values);
  va_end(values);
  return nullptr;
}

PyObject* RaiseValue(const char* format, ...) {
  va_list values;
  va_start(values, format);
  RaiseFormatted(PyExc_ValueError, format, values);
  va_end(values);
  return nullptr;
}

PyObject* RaiseRuntime(const char* format, ...) {
  va_list values;
  va_start(values, format);
  RaiseFormatted(PyExc_RuntimeError, format, values);
  va_end(values);
  return nullptr;
}

void LogSoftFailure(std::string_view method, const Error& error) {
  if (error.code == ErrorCode::kNotFound) return;
  obs::LogRateLimited(obs::LogLevel::kWarning, "python." + std::string(method), error.ToString());
}

}  // namespace mooncake::python

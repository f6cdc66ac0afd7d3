// The one place where a mooncake::Error becomes a Python exception or a number.
#pragma once

#include <Python.h>

#include <string_view>

#include "mooncake/result.h"

namespace mooncake::python {

// Sets the exception for `error`: ValueError for kInvalidArgument, KeyError for kNotFound,
// RuntimeError otherwise. An exception that a signal handler raised meanwhile stays. Always
// nullptr, so that callers can return it.
PyObject* Raise(const Error& error);

// The exception types that the binding itself raises, with printf's formats. Always nullptr.
PyObject* RaiseType(const char* format, ...);
PyObject* RaiseValue(const char* format, ...);
PyObject* RaiseRuntime(const char* format, ...);

// The number of a failed batch item.
inline long CodeOf(const Error& error) {
  // Of the published codes, "not allowed now" is the one for memory that is not registered.
  const bool refused = error.code == ErrorCode::kInvalidArgument;
  return static_cast<long>(refused ? ErrorCode::kInvalidState : error.code);
}

// A line about a failure that Python only sees as a number, at most one a second for each
// method. A miss logs nothing.
void LogSoftFailure(std::string_view method, const Error& error);

}  // namespace mooncake::python

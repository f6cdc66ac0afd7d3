// Ref: a reference to a Python object that is given back when it goes out of scope. The GIL has
// to be held. Smaller than pybind11::object in that it never throws.
#pragma once

#include <Python.h>
#include <cxxabi.h>

#include <utility>

namespace mooncake::python {

// Never returns.
[[noreturn]] void ParkThread() noexcept;

// Runs what may wait for the GIL: to take it, or Python code, which gives it away and takes it
// back. Once the interpreter is ending, CPython before 3.14 ends a daemon thread there by unwinding
// it. That must not come through frames of C++, whose destructors need the GIL or let nothing
// through: such a thread stays where it is until the process ends, as from 3.14 on.
template <typename F>
decltype(auto) OrPark(F&& take) {
  try {
    return std::forward<F>(take)();
  } catch (const abi::__forced_unwind&) {
    ParkThread();
  }
}

class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : object_(owned) {}
  static Ref Borrow(PyObject* object) { return Ref(Py_XNewRef(object)); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) OrPark([this] { Py_DECREF(object_); });
  }

  PyObject* get() const { return object_; }
  PyObject* Release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

}  // namespace mooncake::python

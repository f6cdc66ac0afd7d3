// The GIL, signals and forks as native calls see them.
#pragma once

#include <Python.h>

#include <cstdint>

namespace mooncake::python {

// Gives the GIL up for as long as it lives, so that other Python threads run. A daemon thread that
// wants it back when the interpreter is ending gets no further (see OrPark).
class WithoutGil {
 public:
  WithoutGil();
  ~WithoutGil();
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  PyThreadState* state_;
};

// Takes the GIL back inside a WithoutGil of the same thread, for as long as it lives.
class WithGil {
 public:
  WithGil();
  ~WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
};

// Whether the calling thread, inside WithoutGil, has a signal whose handler raised. The exception
// stays set for when the call comes back. Other threads: false, at no cost.
bool InterruptRequested();

// How many forks lie between the process that loaded this module and the calling one.
uint64_t ForkGeneration();

// Once, when the module is loaded.
void InstallGilHooks();

}  // namespace mooncake::python

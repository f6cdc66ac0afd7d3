#include "gil.h"

#include <pthread.h>

#include <atomic>

#include "obs/phase_span.h"

namespace mooncake::python {
namespace {

// The state that WithoutGil put away. Only set while the thread runs without the GIL.
thread_local PyThreadState* t_saved_state = nullptr;

std::atomic<uint64_t> g_fork_generation = 0;

}  // namespace

WithoutGil::WithoutGil() : state_(PyEval_SaveThread()) {
  t_saved_state = state_;
  obs::ForgetLastCall();  // Always: its store may be gone when tracing is on again.
}

WithoutGil::~WithoutGil() {
  t_saved_state = nullptr;
  PyEval_RestoreThread(state_);
  // What the caller waited for the interpreter.
  if (obs::Tracer::OfProcess().enabled()) [[unlikely]]
    obs::WriteAfterCall("python.bridge");
}

WithGil::WithGil() { PyEval_RestoreThread(t_saved_state); }

WithGil::~WithGil() { t_saved_state = PyEval_SaveThread(); }

bool InterruptRequested() {
  if (t_saved_state == nullptr) return false;
  WithGil gil;
  // The handlers run only once for each signal; what they raised must not be lost by a second
  // look from the same call.
  return PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0;
}

uint64_t ForkGeneration() { return g_fork_generation.load(std::memory_order_relaxed); }

void InstallGilHooks() {
  pthread_atfork(nullptr, nullptr,
                 [] { g_fork_generation.fetch_add(1, std::memory_order_relaxed); });
}

}  // namespace mooncake::python

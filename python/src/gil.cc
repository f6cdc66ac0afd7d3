#include "gil.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "object.h"
#include "obs/phase_span.h"

namespace mooncake::python {
namespace {

// The state that WithoutGil put away. Only set while the thread runs without the GIL.
thread_local PyThreadState* t_saved_state = nullptr;

std::atomic<uint64_t> g_fork_generation = 0;

void TakeGil(PyThreadState* state) {
  OrPark([state] { PyEval_RestoreThread(state); });
}

}  // namespace

void ParkThread() noexcept {
  sigset_t all;  // For the threads that can still handle them.
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  while (true) pause();
}

WithoutGil::WithoutGil() : state_(PyEval_SaveThread()) {
  t_saved_state = state_;
  obs::ForgetLastCall();  // Always: its store may be gone when tracing is on again.
}

WithoutGil::~WithoutGil() {
  t_saved_state = nullptr;
  TakeGil(state_);
  // What the caller waited for the interpreter.
  if (obs::Tracer::OfProcess().enabled()) [[unlikely]]
    obs::WriteAfterCall("python.bridge");
}

WithGil::WithGil() { TakeGil(t_saved_state); }

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

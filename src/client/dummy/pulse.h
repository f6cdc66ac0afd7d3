// Pulse: whether the daemon still answers, for the calls that wait for it. One of those that wait
// asks its health over and over, on a connection for this alone, and does not wait for the answers.
//
// Thread-safe.
#pragma once

#include <memory>

#include "base/mutex.h"
#include "client/dummy/call_pool.h"
#include "runtime/runtime.h"

namespace mooncake::client {

class Pulse {
 public:
  // Both outlive it.
  Pulse(CallPool& pool, Runtime& runtime) : pool_(pool), runtime_(runtime) {}
  // True: there has been no answer for 9 s, all of which the call has waited. To be asked often;
  // may take half a second.
  bool Gone(uint64_t waiting_since_ms);

 private:
  static constexpr uint64_t kSilentMs = 9'000;

  bool Ask();
  bool Answered();

  CallPool& pool_;
  Runtime& runtime_;
  base::Mutex mu_;
  bool taken_ MC_GUARDED_BY(mu_) = false;           // A thread has what follows below.
  uint64_t heard_ms_ MC_GUARDED_BY(mu_) = 0;        // When the daemon was last known to be well.
  uint64_t next_ms_ = 0;                            // When to ask again.
  std::unique_ptr<CallPool::Connection> question_;  // While it is not answered.
};

}  // namespace mooncake::client

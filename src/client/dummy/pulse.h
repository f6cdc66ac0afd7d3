// Pulse: whether the daemon still answers, for a call that waits for it. Asks its health over and
// over, on a connection of its own, and does not wait for the answers. For one thread.
#pragma once

#include <memory>

#include "client/dummy/call_pool.h"
#include "runtime/runtime.h"

namespace mooncake::client {

class Pulse {
 public:
  // Both outlive it.
  Pulse(CallPool& pool, Runtime& runtime);
  // True: there has been no answer for 9 s, or the session has ended. To be asked often; may take
  // half a second.
  bool Gone();

 private:
  static constexpr uint64_t kSilentMs = 9'000;

  bool Ask();
  bool Answered();

  CallPool& pool_;
  Runtime& runtime_;
  uint64_t heard_ms_;                               // When the daemon was last known to be well.
  uint64_t next_ms_;                                // When to ask again.
  std::unique_ptr<CallPool::Connection> question_;  // While it is not answered.
};

}  // namespace mooncake::client

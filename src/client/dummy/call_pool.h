// CallPool: a dummy client's connections for calls, each of which carries one call at a time.
// Made as threads need them, kept for the next ones. Thread-safe; calls run without its lock.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "client/dummy/call_frame.h"
#include "client/dummy/unix_socket.h"

namespace mooncake::client {

class CallPool {
 public:
  // Whose calls the connections carry, and where they are made.
  struct Session {
    std::string socket_path;
    uint64_t high = 0;
    uint64_t low = 0;
  };
  // From here on connections are made for `session`; those of an earlier one end.
  void Open(const Session& session);
  void Close();  // Calls in progress go on.

  struct Connection {
    uint64_t session = 0;  // Its `high` half.
    Descriptor socket;
    CallFrame frame;
  };
  // One that nobody else uses; a new one is made within `limit_ms` and within a second. nullptr:
  // none can be had now, or the pool is closed.
  std::unique_ptr<Connection> Take(uint64_t limit_ms);
  // REQUIRES: no answer is outstanding on it.
  void GiveBack(std::unique_ptr<Connection> connection);

 private:
  static constexpr size_t kIdleMax = 16;

  Result<Descriptor> Connect(const Session& session, uint64_t step_ms);

  base::Mutex mu_;
  std::optional<Session> session_ MC_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Connection>> idle_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::client

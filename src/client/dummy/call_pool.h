// CallPool: a dummy client's connections for calls, each of which carries one call at a time.
// Made as threads need them, kept for the next ones. Thread-safe; calls run without its lock.
#pragma once

#include <array>
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

  // What the caller does while the daemon works. The daemon's thread of a connection runs where
  // its last caller stood still, so each kind has connections of its own.
  enum class Caller : uint8_t { kWaits, kWorksOn };
  struct Connection {
    Caller caller = Caller::kWaits;
    uint64_t session = 0;  // Its `high` half.
    Descriptor socket;
    CallFrame frame;
  };
  // One that nobody else uses; a new one is made within `limit_ms` and within a second. nullptr:
  // none can be had now, or the pool is closed.
  std::unique_ptr<Connection> Take(Caller caller, uint64_t limit_ms);
  // REQUIRES: no answer is outstanding on it.
  void GiveBack(std::unique_ptr<Connection> connection);

 private:
  using Idle = std::array<std::vector<std::unique_ptr<Connection>>, 2>;  // By Caller.
  static constexpr size_t kIdleMax = 16;                                 // Of each.

  Result<Descriptor> Connect(const Session& session, uint64_t step_ms);

  base::Mutex mu_;
  std::optional<Session> session_ MC_GUARDED_BY(mu_);
  Idle idle_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::client

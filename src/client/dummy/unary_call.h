// A unary call of a gRPC service, for the two calls that come before a client knows the daemon's
// Unix socket. By metadata/net rather than by the gRPC library, as that does not survive a fork:
// even after its shutdown an epoll set is left that a child shares with its parent, and each takes
// the events of the other.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "mooncake/result.h"
#include "runtime/runtime.h"

namespace mooncake::client {

struct UnaryCall {
  std::string address;      // "host:port"
  std::string_view method;  // "/package.Service/Method"
  std::string message;
  uint64_t deadline_ms = 0;  // On the scale of Runtime::NowMs.

  // The message of the reply, on a connection of its own. kTransport: says what happened.
  // `end_by_ms` ends every wait too, and may move meanwhile.
  Result<std::string> Run(const std::atomic<uint64_t>& end_by_ms, Runtime& runtime) const;
};

}  // namespace mooncake::client

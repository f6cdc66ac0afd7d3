// StoreServer: the daemon's gRPC end. Translates calls of dummy clients into calls of the store;
// what a message says is checked before it is used. The only file of the daemon that knows gRPC
// is store_service.cc.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "client/local_store.h"
#include "daemon/calls.h"
#include "daemon/session.h"

namespace mooncake::daemon {

struct ServiceParts {  // All outlive the server.
  client::LocalStore& store;
  Sessions& sessions;
  Calls& calls;
  std::map<std::string, uint32_t> scopes;  // Worker scopes served, and the cache domain of each.
  bool any_scope = false;                  // Others are served too, each apart from all.
  std::string socket_path;
  std::string secret;  // Empty: clients need not prove anything.
};

class StoreServer {
 public:
  // kConflict: the address cannot be bound. `parts.socket_path` may be set until the first
  // client says Hello: see Open.
  static Result<std::unique_ptr<StoreServer>> Start(const std::string& address, ServiceParts parts);
  ~StoreServer();
  // Serves from here on; before, every Hello is told to come back.
  void Open(const std::string& socket_path);
  // Ends calls in progress within `grace_ms`. Idempotent.
  void Stop(uint64_t grace_ms);
  uint16_t port() const { return port_; }

  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl, uint16_t port);  // For Start.

 private:
  std::unique_ptr<Impl> impl_;
  const uint16_t port_;
};

}  // namespace mooncake::daemon

// Daemon: a store that lends itself to other processes of its host. Assembles the node, the gRPC
// server and the Unix socket, and takes them down in the reverse order.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "client/local_store.h"
#include "daemon/scratch.h"
#include "daemon/session.h"
#include "daemon/side_server.h"
#include "daemon/store_service.h"

namespace mooncake::daemon {

struct DaemonConfig {
  StoreConfig store;
  std::string client_server_address;  // host:port for dummy clients; empty: none.
  std::string socket_folder;          // Of the Unix socket.
  bool keyspace_given = false;        // Its scope is served only then.
  std::string log_level = "info";
  bool drain_on_exit = false;
  uint64_t drain_timeout_ms = 30'000;
};

class Daemon {
 public:
  // A standby whose client address is in use waits for it, and serves when its predecessor has
  // left it; for every other daemon that is an error.
  static Result<std::unique_ptr<Daemon>> Start(const DaemonConfig& config);
  Daemon(const DaemonConfig& config, std::unique_ptr<client::LocalStore> store);  // For Start.
  ~Daemon();
  // No client is served from here on. Idempotent.
  void StopServing();
  // Within a few seconds: listeners first, then the node. Idempotent.
  void Stop();

  client::LocalStore& store() { return *store_; }
  // Where dummy clients connect, with the port that was bound; empty: nowhere (yet).
  std::string client_address() const;
  std::string socket_path() const;
  Sessions& sessions() { return sessions_; }

 private:
  Status Serve();
  void AwaitAddress();
  std::shared_ptr<const MappedMemory> AreaOf(uint64_t area);

  const DaemonConfig config_;
  std::unique_ptr<client::LocalStore> store_;
  Scratch scratch_;
  Sessions sessions_;
  Calls calls_;
  std::atomic<bool> stop_{false};
  mutable base::Mutex mu_;
  std::string client_address_ MC_GUARDED_BY(mu_);
  std::unique_ptr<StoreServer> server_ MC_GUARDED_BY(mu_);
  std::unique_ptr<SideServer> side_ MC_GUARDED_BY(mu_);
  std::unique_ptr<Thread> await_;  // While the address is somebody else's.
};

// The worker scopes that a daemon serves, each with the domain of the hot cache that it has.
std::map<std::string, uint32_t> ServedScopes(const DaemonConfig& config);

}  // namespace mooncake::daemon

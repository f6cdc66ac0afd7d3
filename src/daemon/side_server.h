// SideServer: the daemon's end of the Unix socket. Takes descriptors from clients of the same
// user, hands out those of the daemon's memory, ends a session with its connection, and serves
// calls on further connections, each in a thread of its own.
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>

#include "client/dummy/unix_socket.h"
#include "daemon/calls.h"
#include "daemon/session.h"

namespace mooncake::daemon {

class SideServer {
 public:
  // The memory behind an area; nullptr: none, or it is not shared.
  using AreaOf = std::function<std::shared_ptr<const MappedMemory>(uint64_t area)>;

  SideServer(Runtime& runtime, Sessions& sessions, Calls& calls, AreaOf area_of);
  ~SideServer();

  // Listens at SocketPath(folder, address, scope) or next to it.
  Status Start(const std::string& folder, const std::string& address, const std::string& scope);
  void Stop();  // Ends all connections. Idempotent.
  const std::string& path() const { return path_; }

 private:
  struct Connection {
    client::Descriptor socket;
    SessionPtr session;  // Once it has attached, or said that it carries calls.
    bool carries_calls = false;
    std::atomic<bool> done{false};
    std::unique_ptr<Thread> thread;
  };

  void Accept();
  void Admit(client::Descriptor socket);
  void Reap();
  void Serve(Connection& connection);
  // False: the connection is to be closed.
  bool ServeOne(Connection& connection);
  bool Attach(Connection& connection, const client::SideMessage& message, client::Descriptor fd);
  bool BeginCalls(Connection& connection, const client::SideMessage& message);
  void ServeCalls(Connection& connection);
  bool ServeCall(Connection& connection, Calls::Messages& messages, client::CallFrame* frame);
  bool Answer(Connection& connection, const Status& status, uint64_t size, int fd);
  Status Handle(Connection& connection, const client::SideMessage& message, client::Descriptor fd);
  bool SendArea(Connection& connection, uint64_t area);

  static constexpr size_t kConnectionsMax = 2'048;
  Runtime& runtime_;
  Sessions& sessions_;
  Calls& calls_;
  const AreaOf area_of_;
  std::string path_;
  client::Descriptor listener_;
  std::atomic<bool> stop_{false};
  std::list<std::unique_ptr<Connection>> connections_;  // The accepting thread's.
  std::unique_ptr<Thread> thread_;
};

}  // namespace mooncake::daemon

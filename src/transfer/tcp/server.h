// TcpServer: the serving half of TcpTransport: a listener, event loops and workers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/runtime.h"
#include "transfer/tcp/event_loop.h"
#include "transfer/tcp/server_connection.h"
#include "transfer/tcp/worker_pool.h"

namespace mooncake::transfer {

class TcpServer {
 public:
  TcpServer(Runtime& runtime, const TcpOptions& options, Metrics* metrics, Service* service)
      : context_(runtime, options, metrics, service) {}
  ~TcpServer() { Close(); }

  // Returns the endpoint. `janitor` is called every second or so on a thread of the server.
  Result<std::string> Start(const std::string& host, uint16_t port,
                            std::function<void(uint64_t now_ms)> janitor);
  // Ends the threads and the connections. Idempotent.
  void Close();

 private:
  void Spread(UniqueFd fd);

  ServerContext context_;
  WorkerPool workers_;
  std::vector<std::unique_ptr<EventLoop>> loops_;
  size_t next_loop_ = 0;  // Of the accepting loop's thread.
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace mooncake::transfer

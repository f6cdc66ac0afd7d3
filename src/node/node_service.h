// NodeService: turns the frames that arrive at the node port into served calls.
#pragma once

#include <atomic>
#include <memory>

#include "node/core.h"
#include "transfer/transport.h"

namespace mooncake::node {

class NodeService : public Service {
 public:
  // Until Open, every request is answered by closing its connection.
  void Open(Core& core) { core_.store(&core, std::memory_order_release); }
  std::unique_ptr<ServerCall> Accept(const IncomingRequest& request) override;

 private:
  std::atomic<Core*> core_{nullptr};
};

}  // namespace mooncake::node

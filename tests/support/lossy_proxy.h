// A TCP proxy that loses answers: for a while, or for the next few, what the server says ends the
// connection instead of reaching the client.
#pragma once

#include <atomic>
#include <cstdint>

#include "support/loopback_server.h"

namespace mooncake::testing {

class LossyProxy {
 public:
  explicit LossyProxy(uint16_t server_port);

  uint16_t port() const { return server_.port(); }
  // Lets `keep` answers pass, and loses the one after them.
  void LoseAnswerAfter(int keep) { keep_ = keep; }
  // Ends every connection, also those with a request under way.
  void CutConnections() { ++cuts_; }
  int lost() const { return lost_; }

 private:
  void Serve(int client, const std::atomic<bool>& stop);

  const uint16_t server_port_;
  std::atomic<int> keep_ = -1;  // Below zero: loses none.
  std::atomic<int> lost_ = 0;
  std::atomic<int> cuts_ = 0;
  LoopbackServer server_;  // Last: its threads use the rest.
};

}  // namespace mooncake::testing

// Accepts connections on a loopback port and gives each to a thread, until it is destroyed: what
// the fake servers of the tests have in common.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace mooncake::testing {

class LoopbackServer {
 public:
  // How long a server may look at its sockets before it looks at `stop` again.
  static constexpr int kLookMs = 5;
  // Serves one connection, and returns when it has ended or soon after `stop` is set. The
  // descriptor is closed afterwards.
  using Serve = std::function<void(int connection, const std::atomic<bool>& stop)>;

  explicit LoopbackServer(Serve serve);
  ~LoopbackServer();
  LoopbackServer(const LoopbackServer&) = delete;
  LoopbackServer& operator=(const LoopbackServer&) = delete;

  uint16_t port() const { return port_; }

 private:
  void Accept();

  const Serve serve_;
  uint16_t port_ = 0;
  int listener_ = -1;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> serving_;  // The accepting thread's.
  std::thread accepting_;
};

}  // namespace mooncake::testing

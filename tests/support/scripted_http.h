// An HTTP server on a loopback port that answers as a test says, well or badly. Each connection
// carries one request.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "support/loopback_server.h"

namespace mooncake::testing {

class ScriptedHttp {
 public:
  // One connection, as its answerer sees it.
  class Peer {
   public:
    Peer(int fd, const std::atomic<bool>& stop) : fd_(fd), stop_(stop) {}
    // False: the client is gone, or the test is over.
    bool Send(std::string_view bytes);

   private:
    const int fd_;
    const std::atomic<bool>& stop_;
  };
  // `request`: its head and body. Called by a thread of each connection.
  using Answerer = std::function<void(const std::string& request, Peer& peer)>;

  explicit ScriptedHttp(Answerer answerer);

  uint16_t port() const { return server_.port(); }
  std::string Address() const { return "127.0.0.1:" + std::to_string(port()); }

  // A whole answer, after which the connection ends.
  static std::string Answer(int status, std::string_view body);

 private:
  void Serve(int client, const std::atomic<bool>& stop);

  const Answerer answerer_;
  LoopbackServer server_;  // Last: its threads use the rest.
};

}  // namespace mooncake::testing

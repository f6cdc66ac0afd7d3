// A gRPC server on a loopback port that answers unary calls as a test says.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "support/loopback_server.h"

namespace mooncake::testing {

class ScriptedGrpc {
 public:
  struct Call {
    std::string method;  // "/package.Service/Method"
    std::string token;   // The metadata of this name.
    std::string message;
  };
  struct Reply {
    int code = 0;
    std::string refusal;  // As on the wire, percent-encoded.
    std::string message;  // Of code 0.
    std::string http_status = "200";
    std::string content_type = "application/grpc";
    bool goes_away = false;  // After this reply.
  };
  // Called by a thread of each connection.
  using Answerer = std::function<Reply(const Call& call)>;

  explicit ScriptedGrpc(Answerer answerer);

  uint16_t port() const { return server_.port(); }
  std::string Address() const { return "127.0.0.1:" + std::to_string(port()); }

 private:
  void Serve(int client, const std::atomic<bool>& stop);

  const Answerer answerer_;
  LoopbackServer server_;  // Last: its threads use the rest.
};

}  // namespace mooncake::testing

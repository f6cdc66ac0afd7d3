// HttpServer: answers small GET requests, one thread for all of them.
//
// Bounded on purpose, as it may face a network: the number of connections, the size of a head,
// and the time that a client may take to ask and to read. A connection serves one request. Slow
// or silent clients hold up nobody, and stopping waits for none of them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mooncake/result.h"
#include "obs/http_request.h"
#include "runtime/runtime.h"

namespace mooncake::obs {

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
};

// Called on the server's thread, one request at a time; should take milliseconds.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

struct HttpLimits {
  size_t connections = 64;
  size_t head_bytes = 8 << 10;
  uint64_t ask_ms = 5'000;     // From the connection to the end of the head.
  uint64_t reply_ms = 10'000;  // For the client to take the answer.
};

class HttpServer {
 public:
  // Listens at "host:port"; port 0 takes any free one. kInvalidArgument: not an address;
  // kTransport: it cannot be listened at, with the reason.
  static Result<std::unique_ptr<HttpServer>> Start(Runtime& runtime, const std::string& bind_addr,
                                                   HttpHandler handler, HttpLimits limits = {});
  // For Start alone.
  HttpServer(Runtime& runtime, HttpHandler handler, HttpLimits limits);
  ~HttpServer();  // Stops; no request is answered afterwards.
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // With the port in use.
  // In a child that was forked, where the thread does not exist: closes what was inherited and
  // nothing else. The object is only to be destroyed afterwards, or leaked.
  void CloseInherited();

 private:
  struct Connection;
  Status Listen(const std::string& bind_addr);
  void Loop();
  void Admit(uint64_t now_ms);
  // Each does what its socket is ready for; false: the connection is over.
  bool Advance(Connection& connection, uint64_t now_ms);
  bool ReadHead(Connection& connection, uint64_t now_ms);
  bool WriteReply(Connection& connection, uint64_t now_ms);
  bool AwaitEnd(Connection& connection);
  void Reply(Connection& connection, HttpResponse response, uint64_t now_ms);

  Runtime& runtime_;
  const HttpHandler handler_;
  const HttpLimits limits_;
  std::string address_;
  int listener_ = -1;
  int wake_ = -1;  // An eventfd; readable: stop.
  uint64_t accept_after_ms_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;  // The server thread's.
  std::unique_ptr<Thread> thread_;
};

}  // namespace mooncake::obs

#include "support/loopback_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

namespace mooncake::testing {

LoopbackServer::LoopbackServer(Serve serve)
    : serve_(std::move(serve)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  listen(listener_, 64);
  accepting_ = std::thread([this] { Accept(); });
}

LoopbackServer::~LoopbackServer() {
  stop_ = true;
  accepting_.join();
  for (std::thread& thread : serving_) thread.join();
  close(listener_);
}

void LoopbackServer::Accept() {
  pollfd waited{.fd = listener_, .events = POLLIN, .revents = 0};
  while (!stop_) {
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    serving_.emplace_back([this, connection] {
      serve_(connection, stop_);
      close(connection);
    });
  }
}

}  // namespace mooncake::testing

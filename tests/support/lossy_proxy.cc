#include "support/lossy_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace mooncake::testing {
namespace {

constexpr int kLookMs = 5;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// False: the stream ended.
bool Copy(int from, int to) {
  std::array<char, 16384> bytes;
  const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
  return count > 0 && send(to, bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL) == count;
}

}  // namespace

LossyProxy::LossyProxy(uint16_t server_port)
    : server_port_(server_port), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof address;
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  listen(listener_, 64);
  accepting_ = std::thread([this] { Accept(); });
}

LossyProxy::~LossyProxy() {
  stop_ = true;
  accepting_.join();
  for (std::thread& thread : serving_) thread.join();
  close(listener_);
}

void LossyProxy::Accept() {
  pollfd waited{.fd = listener_, .events = POLLIN, .revents = 0};
  while (!stop_) {
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) serving_.emplace_back([this, client] { Serve(client); });
  }
}

void LossyProxy::Serve(int client) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  const int cuts = cuts_;
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  while (open && !stop_ && cuts_ == cuts) {
    std::array<pollfd, 2> waited{{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (poll(waited.data(), waited.size(), kLookMs) <= 0) continue;
    if (waited[1].revents != 0) {
      if (keep_ >= 0 && keep_-- == 0) {
        ++lost_;
        break;
      }
      open = Copy(server, client);
    }
    if (open && waited[0].revents != 0) open = Copy(client, server);
  }
  close(server);
  close(client);
}

}  // namespace mooncake::testing

#include "support/lossy_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

namespace mooncake::testing {
namespace {

// False: the stream ended.
bool Copy(int from, int to) {
  std::array<char, 16384> bytes;
  const ssize_t count = recv(from, bytes.data(), bytes.size(), 0);
  return count > 0 && send(to, bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL) == count;
}

}  // namespace

LossyProxy::LossyProxy(uint16_t server_port)
    : server_port_(server_port),
      server_([this](int client, const std::atomic<bool>& stop) { Serve(client, stop); }) {}

void LossyProxy::Serve(int client, const std::atomic<bool>& stop) {
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server_port_);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int cuts = cuts_;
  bool open = connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  while (open && !stop && cuts_ == cuts) {
    std::array<pollfd, 2> waited{{{client, POLLIN, 0}, {server, POLLIN, 0}}};
    if (poll(waited.data(), waited.size(), LoopbackServer::kLookMs) <= 0) continue;
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
}

}  // namespace mooncake::testing

#include "unit/transfer/raw_socket.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

namespace mooncake::transfer {
namespace {

constexpr int kPatienceMs = 2'000;

bool WaitFor(int fd, short events) {
  pollfd entry = {fd, events, 0};
  return poll(&entry, 1, kPatienceMs) > 0;
}

}  // namespace

RawSocket::RawSocket(const std::string& endpoint) {
  int error = 0;
  fd_ = StartConnect(ResolveEndpoint(endpoint).value()[0], 0, error);
  EXPECT_EQ(error, 0);
  EXPECT_TRUE(WaitFor(fd_.get(), POLLOUT));
}

bool RawSocket::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    if (!WaitFor(fd_.get(), POLLOUT)) return false;
    const ssize_t sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

std::string RawSocket::Receive(size_t size) {
  std::string bytes;
  char buffer[4096];
  while (bytes.size() < size && WaitFor(fd_.get(), POLLIN)) {
    const ssize_t got = ::recv(fd_.get(), buffer, std::min(sizeof buffer, size - bytes.size()), 0);
    if (got <= 0) break;
    bytes.append(buffer, static_cast<size_t>(got));
  }
  return bytes;
}

bool RawSocket::IsClosedByPeer() {
  char buffer[4096];
  while (WaitFor(fd_.get(), POLLIN)) {
    if (::recv(fd_.get(), buffer, sizeof buffer, 0) <= 0) return true;
  }
  return false;
}

RawListener::RawListener() {
  uint16_t port = 0;
  fd_ = ListenOn("127.0.0.1", port, 0).value();
  endpoint_ = "127.0.0.1:" + std::to_string(port);
}

RawSocket RawListener::Accept() {
  EXPECT_TRUE(WaitFor(fd_.get(), POLLIN));
  return RawSocket(UniqueFd(::accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
}

}  // namespace mooncake::transfer

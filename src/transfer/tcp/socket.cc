#include "transfer/tcp/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>

#include "base/hostport.h"

namespace mooncake::transfer {
namespace {

constexpr int kListenBacklog = 1024;

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Result<AddressList> Lookup(const std::string& host, const std::string& port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) {
    return TransportError(fmt::format("host `{}` has no address: {}", host, gai_strerror(error)));
  }
  return AddressList(found, &freeaddrinfo);
}

const in_addr& V4Of(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr;
}
const in6_addr& V6Of(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr;
}

void SetInt(int fd, int level, int option, int value) {
  // A refused option costs speed, not correctness.
  (void)setsockopt(fd, level, option, &value, sizeof value);
}

void SetBuffers(int fd, int buffer_bytes) {
  if (buffer_bytes <= 0) return;
  SetInt(fd, SOL_SOCKET, SO_SNDBUF, buffer_bytes);
  SetInt(fd, SOL_SOCKET, SO_RCVBUF, buffer_bytes);
}

}  // namespace

void UniqueFd::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

std::string ErrnoText(int error) { return std::generic_category().message(error); }

Result<std::vector<SocketAddress>> ResolveEndpoint(std::string_view endpoint) {
  MC_TRY(base::HostPort parsed, base::ParseHostPort("endpoint", endpoint));
  if (!parsed.port) return InvalidArgument(fmt::format("endpoint `{}` has no port", endpoint));
  MC_TRY(AddressList list, Lookup(parsed.host, std::to_string(*parsed.port), 0));
  std::vector<SocketAddress> addresses;
  for (addrinfo* at = list.get(); at && addresses.size() < kAddressesMax; at = at->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, at->ai_addr, at->ai_addrlen);
    address.size = at->ai_addrlen;
    addresses.push_back(address);
  }
  return addresses;
}

Result<UniqueFd> ListenOn(const std::string& host, uint16_t& port, int buffer_bytes) {
  const std::string endpoint = base::JoinHostPort(host, port);
  auto list = Lookup(host, std::to_string(port), AI_PASSIVE);
  if (!list) return InvalidArgument(list.error().context);
  const addrinfo* at = list.value().get();
  UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return TransportError(fmt::format("no socket: {}", ErrnoText(errno)));
  SetInt(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetBuffers(fd.get(), buffer_bytes);  // Before listen: the window scale is agreed at connect.
  if (::bind(fd.get(), at->ai_addr, at->ai_addrlen) != 0 ||
      ::listen(fd.get(), kListenBacklog) != 0) {
    return InvalidArgument(fmt::format("cannot listen on {}: {}", endpoint, ErrnoText(errno)));
  }
  SocketAddress bound;
  bound.size = sizeof bound.storage;
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size) != 0) {
    return TransportError(fmt::format("cannot listen on {}: {}", endpoint, ErrnoText(errno)));
  }
  // The port has the same place in both families.
  port = ntohs(reinterpret_cast<const sockaddr_in*>(&bound.storage)->sin_port);
  return fd;
}

UniqueFd StartConnect(const SocketAddress& address, int buffer_bytes, int& error) {
  error = 0;
  UniqueFd fd(::socket(address.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) {
    error = errno;
    return fd;
  }
  TuneConnection(fd.get(), buffer_bytes);
  if (::connect(fd.get(), address.get(), address.size) != 0 && errno != EINPROGRESS) error = errno;
  return fd;
}

int ConnectError(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
  return error;
}

void MakeBlocking(int fd, uint32_t slice_ms) {
  const timeval slice = {static_cast<time_t>(slice_ms / 1000),
                         static_cast<suseconds_t>(slice_ms % 1000) * 1000};
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice);
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice);
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) (void)fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
}

void TuneConnection(int fd, int buffer_bytes) {
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetBuffers(fd, buffer_bytes);
}

void TuneSameHost(int fd) {
  SocketAddress local, peer;
  local.size = peer.size = sizeof local.storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local.storage), &local.size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer.storage), &peer.size) != 0) {
    return;
  }
  const bool same = local.get()->sa_family == AF_INET
                        ? V4Of(local).s_addr == V4Of(peer).s_addr
                        : std::memcmp(&V6Of(local), &V6Of(peer), sizeof(in6_addr)) == 0;
  static constexpr char kPlain[] = "reno";  // Always there, and open to everybody.
  if (same) (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kPlain, sizeof kPlain - 1);
}

bool LooksAlive(int fd) {
  char byte;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace mooncake::transfer

// Sockets for the tcp adapter: owned descriptors, addresses, and the few calls that create
// connections. Every descriptor is close-on-exec.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mooncake/result.h"

namespace mooncake::transfer {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd() { Reset(); }
  void Reset();
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Addresses of "host:port" or "[v6]:port"; at most kAddressesMax. Asks the resolver when the
// host is a name, which may take as long as the system's resolver lets it.
inline constexpr size_t kAddressesMax = 4;
Result<std::vector<SocketAddress>> ResolveEndpoint(std::string_view endpoint);

// A listening socket. `port` 0: any, filled in. kInvalidArgument names host:port when it is in
// use or not of this machine.
Result<UniqueFd> ListenOn(const std::string& host, uint16_t& port, int buffer_bytes);

// Starts to connect without waiting; the descriptor is non-blocking. -errno in `error` when it
// failed at once, else 0.
UniqueFd StartConnect(const SocketAddress& address, int buffer_bytes, int& error);
// After the descriptor became writable: 0 or the errno with which the connection failed.
int ConnectError(int fd);

// Back to blocking, with receives and sends that wait at most `slice_ms`.
void MakeBlocking(int fd, uint32_t slice_ms);

// Options of every connection: no delay of small segments; buffers of `buffer_bytes` unless 0.
void TuneConnection(int fd, int buffer_bytes);

// For a connected descriptor whose peer is on this host: a congestion control that does not pace.
// A pacing one (bbr) takes the loopback for a slow network every now and then, and streams of
// 1 MiB then run at half the speed.
void TuneSameHost(int fd);

// Whether an idle connection is still usable: nothing to read and no end seen.
bool LooksAlive(int fd);

std::string ErrnoText(int error);

}  // namespace mooncake::transfer

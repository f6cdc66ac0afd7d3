// Unix sockets that pass descriptors, and the folder that they live in. All errors name the path
// and the kernel's reason.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "mooncake/bytes.h"
#include "mooncake/result.h"

namespace mooncake::client {

// Owns a descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor();
  int get() const { return fd_; }
  int Take() { return std::exchange(fd_, -1); }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// A folder for this user's sockets, made with mode 0700. kInvalidState: it exists and is not a
// folder, belongs to another user, or others may enter it.
Status MakeSocketFolder(const std::string& folder);

// "<folder>/d-<16 hex digits>.sock": short whatever the address and scope are.
std::string SocketPath(const std::string& folder, const std::string& address,
                       const std::string& scope);

// A listening socket at `path`, or, where another process serves that, at path + ".1" ... A
// socket file that nobody serves is replaced. `path` becomes the one that was taken.
Result<Descriptor> ListenAt(std::string* path);
// The socket keeps `timeout_ms` as the longest that one send or receive may take. kBackPressure:
// whoever serves it did not take the connection in that time, or a signal came meanwhile;
// kTransport: nobody serves it.
Result<Descriptor> ConnectTo(const std::string& path, uint64_t timeout_ms);

// The user at the other end. nullopt: the kernel does not say.
std::optional<uid_t> PeerUser(int socket);
// Becomes readable when the process that made the connection ends, though a child of its may hold
// the connection open. Empty: it cannot be told here (another pid namespace).
Descriptor PeerProcess(int socket);

// One packet, with a descriptor unless that is -1.
Status SendPacket(int socket, ConstBytes packet, int fd);

struct Packet {
  size_t size = 0;  // 0: the other end has closed.
  Descriptor fd;    // The descriptor that came with it, if any.
};
// kTransport: nothing came within the socket's timeout, or the connection broke. kInvalidArgument:
// a packet that is longer than `buffer` or has more than one descriptor.
Result<Packet> ReceivePacket(int socket, MutableBytes buffer);

// The longest that one send, receive or connect may take; at least 1.
void SetSocketTimeout(int socket, uint64_t timeout_ms);

}  // namespace mooncake::client

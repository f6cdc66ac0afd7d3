#include "client/dummy/unix_socket.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/hash.h"

namespace mooncake::client {

namespace {

constexpr int kPathsMax = 8;
constexpr int kBacklog = 128;
constexpr uint64_t kProbeMs = 500;

Error OsError(const std::string& what) {
  return TransportError(fmt::format("{}: {}", what, strerror(errno)));
}

Result<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return InvalidArgument(
        fmt::format("socket path {} is longer than {} bytes", path, sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

Result<Descriptor> NewSocket() {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket) return OsError("cannot make a Unix socket");
  return socket;
}

// Closes every descriptor of a message but the first, which it returns.
Descriptor TakeDescriptors(msghdr& message, int* count) {
  Descriptor first;
  *count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t fds = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < fds; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      Descriptor owned(fd);
      if ((*count)++ == 0) first = std::move(owned);
    }
  }
  return first;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Status MakeSocketFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return OsError(fmt::format("cannot make the socket folder {}", folder));
  }
  struct stat found = {};
  if (lstat(folder.c_str(), &found) != 0) {
    return OsError(fmt::format("cannot look at the socket folder {}", folder));
  }
  if (!S_ISDIR(found.st_mode) || found.st_uid != geteuid() || (found.st_mode & 077) != 0) {
    return InvalidState(fmt::format(
        "socket folder {}: expected a folder of user {} with mode 0700, found user {}, mode {:o}",
        folder, geteuid(), found.st_uid, found.st_mode));
  }
  return Ok();
}

std::string SocketPath(const std::string& folder, const std::string& address,
                       const std::string& scope) {
  const uint64_t hash = base::Hash64(scope, base::Hash64(address));
  return fmt::format("{}/d-{:016x}.sock", folder, hash);
}

Result<Descriptor> ListenAt(std::string* path) {
  const std::string wanted = *path;
  for (int attempt = 0; attempt < kPathsMax; ++attempt) {
    *path = attempt == 0 ? wanted : fmt::format("{}.{}", wanted, attempt);
    MC_TRY(const sockaddr_un address, AddressOf(*path));
    MC_TRY(Descriptor socket, NewSocket());
    const auto* name = reinterpret_cast<const sockaddr*>(&address);
    int bound = bind(socket.get(), name, sizeof(address));
    if (bound != 0 && errno == EADDRINUSE) {
      const Result<Descriptor> other = ConnectTo(*path, kProbeMs);
      // Served by another process, though perhaps it stands still.
      if (other.ok() || other.code() == ErrorCode::kBackPressure) continue;
      unlink(path->c_str());
      bound = bind(socket.get(), name, sizeof(address));
    }
    if (bound != 0) return OsError(fmt::format("cannot bind {}", *path));
    if (listen(socket.get(), kBacklog) != 0) {
      return OsError(fmt::format("cannot listen at {}", *path));
    }
    return socket;
  }
  return TransportError(fmt::format("{} and its alternatives are all in use", wanted));
}

Result<Descriptor> ConnectTo(const std::string& path, uint64_t timeout_ms) {
  MC_TRY(const sockaddr_un address, AddressOf(path));
  MC_TRY(Descriptor socket, NewSocket());
  SetSocketTimeout(socket.get(), timeout_ms);  // Else it waits for room in a full backlog.
  if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    if (errno == EAGAIN || errno == EINTR) {
      return BackPressure(fmt::format("{} takes no connection: {}", path, strerror(errno)));
    }
    return OsError(fmt::format("cannot connect to {}", path));
  }
  return socket;
}

std::optional<uid_t> PeerUser(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer.uid;
}

Descriptor PeerProcess(int socket) {
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return {};
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

Status SendPacket(int socket, ConstBytes packet, int fd) {
  iovec bytes = {const_cast<std::byte*>(packet.data()), packet.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* part = CMSG_FIRSTHDR(&message);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(part), &fd, sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent == static_cast<ssize_t>(packet.size())) return Ok();
  return OsError("cannot send on the shared memory socket");
}

Result<Packet> ReceivePacket(int socket, MutableBytes buffer) {
  iovec bytes = {buffer.data(), buffer.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  // Room for a few, so that descriptors beyond the first are ours to close.
  alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t got = -1;
  do {
    got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return OsError("nothing came on the shared memory socket");
  Packet packet;
  int count = 0;
  packet.fd = TakeDescriptors(message, &count);
  packet.size = static_cast<size_t>(got);
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 || count > 1) {
    return InvalidArgument("a malformed packet on the shared memory socket");
  }
  return packet;
}

void SetSocketTimeout(int socket, uint64_t timeout_ms) {
  timeout_ms = std::max<uint64_t>(timeout_ms, 1);  // 0 would be for ever.
  const timeval limit = {static_cast<time_t>(timeout_ms / 1'000),
                         static_cast<suseconds_t>(timeout_ms % 1'000 * 1'000)};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
}

}  // namespace mooncake::client

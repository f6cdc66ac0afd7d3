#include "bench/raw_server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace mooncake::bench {
namespace {

constexpr int kAcceptPollMs = 50;
constexpr uint64_t kRequestBytesMax = uint64_t{16} << 30;

}  // namespace

bool ReadAll(int fd, void* data, size_t size) {
  for (char* at = static_cast<char*>(data); size > 0;) {
    const ssize_t got = ::read(fd, at, size);
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(int fd, const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t put = ::send(fd, at, size, MSG_NOSIGNAL);
    if (put <= 0) return false;
    at += put;
    size -= static_cast<size_t>(put);
  }
  return true;
}

Result<std::unique_ptr<RawServer>> RawServer::Start(Runtime& runtime) {
  MC_TRY(MappedMemory region, MappedMemory::Map(kRawRegionBytes, 0));
  std::memset(region.bytes().data(), 1, region.bytes().size());
  uint16_t port = 0;
  MC_TRY(transfer::UniqueFd listener, transfer::ListenOn("127.0.0.1", port, 0));
  auto server = std::make_unique<RawServer>(runtime, std::move(region), std::move(listener), port);
  server->accept_thread_ = runtime.Spawn("raw-accept", [s = server.get()] { s->AcceptLoop(); });
  return server;
}

RawServer::RawServer(Runtime& runtime, MappedMemory region, transfer::UniqueFd listener,
                     uint16_t port)
    : runtime_(runtime), region_(std::move(region)), listener_(std::move(listener)), port_(port) {}

RawServer::~RawServer() {
  stop_ = true;
  accept_thread_->Join();
  for (const transfer::UniqueFd& connection : connections_) ::shutdown(connection.get(), SHUT_RDWR);
  threads_.clear();
}

void RawServer::AcceptLoop() {
  while (!stop_) {
    pollfd listening = {listener_.get(), POLLIN, 0};
    if (::poll(&listening, 1, kAcceptPollMs) <= 0) continue;
    const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    transfer::TuneConnection(fd, 0);
    transfer::TuneSameHost(fd);
    connections_.emplace_back(fd);
    threads_.push_back(runtime_.Spawn("raw-serve", [this, fd] { Serve(fd); }));
  }
}

void RawServer::Serve(int fd) {
  const MutableBytes region = region_.bytes();
  RawRequest request;
  while (ReadAll(fd, &request, sizeof request) && request.size <= kRequestBytesMax) {
    // Another part of the region each time, as a store would not answer from the cache either.
    uint64_t offset = next_offset_.fetch_add(request.size);
    for (uint64_t left = request.size; left > 0;) {
      offset %= region.size();
      const uint64_t part = std::min(left, region.size() - offset);
      std::byte* const at = region.data() + offset;
      if (!(request.put != 0 ? ReadAll(fd, at, part) : WriteAll(fd, at, part))) return;
      left -= part;
      offset += part;
    }
    if (request.put != 0 && !WriteAll(fd, "k", 1)) return;
  }
}

}  // namespace mooncake::bench

// The bare other end of a connection: what TCP itself can do, without a store. Answers requests
// for bytes, and takes bytes, with blocking reads and writes on one thread per connection.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "mooncake/result.h"
#include "runtime/mapped_memory.h"
#include "runtime/runtime.h"
#include "transfer/tcp/socket.h"

namespace mooncake::bench {

struct RawRequest {
  uint64_t put = 0;
  uint64_t size = 0;
};

inline constexpr uint64_t kRawRegionBytes = 64 << 20;  // Larger than a usual cache.

// Blocking; false: the connection ended.
bool ReadAll(int fd, void* data, size_t size);
bool WriteAll(int fd, const void* data, size_t size);

class RawServer {
 public:
  static Result<std::unique_ptr<RawServer>> Start(Runtime& runtime);
  // For Start.
  RawServer(Runtime& runtime, MappedMemory region, transfer::UniqueFd listener, uint16_t port);
  ~RawServer();
  uint16_t port() const { return port_; }

 private:
  void AcceptLoop();
  void Serve(int fd);

  Runtime& runtime_;
  MappedMemory region_;
  transfer::UniqueFd listener_;
  const uint16_t port_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> next_offset_{0};
  std::vector<transfer::UniqueFd> connections_;  // Accept thread only, until it ended.
  std::vector<std::unique_ptr<Thread>> threads_;
  std::unique_ptr<Thread> accept_thread_;
};

}  // namespace mooncake::bench

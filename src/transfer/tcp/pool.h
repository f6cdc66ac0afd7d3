// ConnectionPool: idle connections to peers, and the addresses of their endpoints. A call takes
// a connection out and puts it back when it is at a frame boundary, so there are never more
// connections than calls that ran at the same time. Last in, first out: surplus ones age and are
// closed, and so are those whose peer has closed them. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "mooncake/result.h"
#include "transfer/tcp/input_buffer.h"
#include "transfer/tcp/socket.h"

namespace mooncake::transfer {

// Owned by one call at a time, else by the pool.
struct Connection {
  UniqueFd fd;
  InputBuffer in;
  uint64_t requests = 0;      // Sent so far; the next request's id.
  uint64_t last_used_ms = 0;  // When it went back to the pool.
};

class ConnectionPool {
 public:
  static constexpr size_t kIdlePerPeerMax = 64;
  static constexpr size_t kIdleMax = 2048;
  static constexpr uint64_t kIdleMs = 60'000;
  static constexpr uint64_t kSweepEveryMs = 1'000;
  static constexpr uint64_t kAddressMs = 30'000;       // How long a name's addresses are kept,
  static constexpr uint64_t kFailedAddressMs = 2'000;  // and the lack of one.
  // One that rested for longer is looked at before it is used, which costs a system call.
  static constexpr uint64_t kTrustedIdleMs = 200;

  // nullptr: none is idle. Dead ones are dropped on the way.
  std::unique_ptr<Connection> Take(std::string_view endpoint, uint64_t now_ms);
  // REQUIRES: no reply is outstanding.
  void Put(std::string_view endpoint, std::unique_ptr<Connection> connection, uint64_t now_ms);

  Result<std::vector<SocketAddress>> Resolve(std::string_view endpoint, uint64_t now_ms);

  void Forget(std::string_view endpoint);
  // Closes what was idle for kIdleMs, and what the peer has closed: a peer that restarts again and
  // again would else leave descriptors behind for a minute. Works once in kSweepEveryMs, with one
  // system call for each peer; cheap when called more often.
  void Sweep(uint64_t now_ms);
  // Closes all that are idle: descriptors are short, or the transport closes.
  void Clear();

 private:
  struct Peer {
    std::vector<std::unique_ptr<Connection>> idle;  // Oldest first.
    Result<std::vector<SocketAddress>> addresses = std::vector<SocketAddress>();
    uint64_t resolved_ms = 0;  // 0: never.
  };
  struct TextHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  using Peers = std::unordered_map<std::string, Peer, TextHash, std::equal_to<>>;

  static bool Fresh(const Peer& peer, uint64_t now_ms);
  std::unique_ptr<Connection> Pop(std::string_view endpoint);
  // The peers to sweep; none when the last sweep was a moment ago.
  std::vector<std::string> StartSweep(uint64_t now_ms);
  void SweepPeer(std::string_view endpoint, uint64_t now_ms);

  base::Mutex mu_;
  Peers peers_ MC_GUARDED_BY(mu_);
  size_t idle_ MC_GUARDED_BY(mu_) = 0;
  uint64_t swept_ms_ MC_GUARDED_BY(mu_) = 0;
};

}  // namespace mooncake::transfer

// TcpTransport: the Transport over TCP sockets.
//
// A caller's thread does the I/O of its calls itself, with blocking system calls when there is
// one call and with poll when there are several. Connections are kept between calls: as many
// per peer as calls ran at the same time, closed when idle for a minute, or about a second after
// the peer has closed them. A kept connection that turns out dead before a byte of the reply came
// is replaced once; the caller sees nothing of it. (A transport that neither listens nor calls
// closes nothing until its next call.) Listen starts the event loops that serve and the workers
// that run what may block.
//
// One-sided access is not supported: RegisterMemory gives an empty token, AccessMany
// kUnsupported.
//
// For real time only (RealRuntime): it waits in the operating system, not in the Runtime.
//
//   TcpTransport transport(runtime, TcpOptions{.secret = "..."}, &metrics);
//   Result<std::string> endpoint = transport.Listen("0.0.0.0", 0, &service);
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "obs/metrics.h"
#include "runtime/runtime.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

struct TcpOptions {
  uint64_t stall_ms = 10'000;   // No byte moved for so long: the call or connection ends.
  uint64_t connect_ms = 3'000;  // One connection attempt; the stall limit applies too.
  std::string secret;           // Shared by the cluster; empty: peers are not authenticated.

  // How often a waiting call looks for Close, interrupts and its limits.
  uint32_t slice_ms = 200;
  // SO_SNDBUF and SO_RCVBUF; 0 leaves both to the kernel's own tuning, which measured the same
  // as 4 MiB on loopback and takes no memory for small calls.
  int buffer_bytes = 0;
  // Handed to the network, and to OnSend and OnReceive, at once: half of a usual second-level
  // cache. Smaller sends wake the peer more often (1 MiB puts: 10 % slower at 256 KiB).
  uint32_t send_chunk_bytes = 512u << 10;
  uint32_t receive_chunk_bytes = 256u << 10;

  // Serving.
  uint32_t loops = 2;    // Event loops; connections are spread over them.
  uint32_t workers = 4;  // Threads for Prepare(true) and Run(true).
  // Accepted ones, and half of the descriptors that the process may have. What comes above takes
  // the place of one that has been silent for spare_ms, or is closed at once.
  uint32_t connections_max = 4096;
  uint64_t spare_ms = 2'000;
  // An accepted connection without a further request is closed; without a first one it is after
  // stall_ms.
  uint64_t idle_ms = 300'000;
};

class TcpServer;
struct ClientContext;

class TcpTransport final : public Transport {
 public:
  // `runtime` and `metrics` (may be null) outlive the transport.
  TcpTransport(Runtime& runtime, TcpOptions options, Metrics* metrics = nullptr);
  ~TcpTransport() override;  // Closes. REQUIRES: no call is in progress.

  TransportCapabilities Capabilities() const override { return {}; }
  Result<std::string> Listen(const std::string& host, uint16_t port, Service* service) override;
  void CallMany(std::span<Call> calls) override;
  Result<std::string> RegisterMemory(MutableBytes) override { return std::string(); }
  void UnregisterMemory(MutableBytes) override {}
  void AccessMany(std::span<RemoteAccess> accesses) override;
  void Forget(std::string_view endpoint) override;
  // Waits for Prepare(true) and Run(true) in progress: the service must let them end.
  void Close() override;

 private:
  Runtime& runtime_;
  const TcpOptions options_;
  Metrics* const metrics_;
  std::unique_ptr<ClientContext> client_;
  std::unique_ptr<TcpServer> server_;
};

}  // namespace mooncake::transfer

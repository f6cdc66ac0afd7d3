// MemoryNetwork and MemoryTransport: a network inside one process, for tests and simulation.
//
//   MemoryNetwork network(runtime);
//   MemoryTransport a(network), b(network);
//   Result<std::string> endpoint = b.Listen("node", 0, &service);
//
// A call runs the peer's ServerCall on the calling thread, on a thread of its own only where it
// may block. Faults are drawn from Runtime::Random and delays are Runtime::SleepMs, so under
// SimRuntime a seed decides them. What is in flight is a copy: a request can be served, once
// or twice, after its caller has given up, and never touches that caller's memory then.
//
// Thread-safe. The network outlives its transports. Under SimRuntime all of it, its end too,
// belongs inside Run: closing waits for threads that still serve.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/runtime.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// Chances are from 0 to 1 and apply to each call by itself.
struct NetworkFaults {
  uint64_t latency_ms_min = 0;  // One way.
  uint64_t latency_ms_max = 0;
  double drop_request = 0;   // Never served; the caller stalls.
  double drop_reply = 0;     // Served; the caller stalls.
  double reset_request = 0;  // Never served; the caller's connection breaks.
  double reset_reply = 0;    // Served; the caller's connection breaks.
  double duplicate = 0;      // Served a second time, up to duplicate_ms_max later.
  uint64_t duplicate_ms_max = 1'000;
  double corrupt = 0;  // One byte of a payload is another one when it arrives; each way.
  // Bytes between two switch points of a copy: one-sided reads can be torn there.
  uint64_t copy_step_bytes = 64u << 10;
};

class NetworkState;

class MemoryNetwork {
 public:
  static constexpr uint64_t kStallMs = 10'000;

  // `stall_ms`: what a silent peer costs a call.
  explicit MemoryNetwork(Runtime& runtime, uint64_t stall_ms = kStallMs);
  ~MemoryNetwork();  // Waits for late requests that are still being served.

  void SetFaults(const NetworkFaults& faults);

  // Messages pass only between endpoints of one group. Endpoints in no group reach everybody,
  // as does a transport that does not listen. Replaces the former partition.
  void Partition(std::vector<std::set<std::string>> groups);
  // One direction only: requests and replies from `from` to `to` are lost.
  void Block(const std::string& from, const std::string& to, bool blocked);
  // Nobody listens: calls are refused, replies under way break.
  void SetDown(const std::string& endpoint, bool down);
  // Silent: calls wait. What arrived is served on resume, even for callers that left.
  void SetPaused(const std::string& endpoint, bool paused);
  // No faults, partition, blocks or pauses. Down stays down.
  void Heal();

  NetworkState& state() { return *state_; }  // For MemoryTransport.

 private:
  std::unique_ptr<NetworkState> state_;
};

class MemoryTransport final : public Transport {
 public:
  explicit MemoryTransport(MemoryNetwork& network);
  ~MemoryTransport() override;  // Closes. REQUIRES: no call is in progress.

  TransportCapabilities Capabilities() const override { return {.one_sided = true}; }
  // `port` 0: the network picks one.
  Result<std::string> Listen(const std::string& host, uint16_t port, Service* service) override;
  void CallMany(std::span<Call> calls) override;
  Result<std::string> RegisterMemory(MutableBytes range) override;
  void UnregisterMemory(MutableBytes range) override;
  void AccessMany(std::span<RemoteAccess> accesses) override;
  void Forget(std::string_view) override {}
  // Waits for Prepare(true) and Run(true) in progress.
  void Close() override;

 private:
  struct Self;

  NetworkState& network_;
  const std::unique_ptr<Self> self_;
};

}  // namespace mooncake::transfer

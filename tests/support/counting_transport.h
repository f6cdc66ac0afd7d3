// A Transport that passes everything on to another one and counts what callers wait for: rounds
// (a CallMany is one, however many peers it reaches), messages and payload bytes.
//
// Thread-safe, like what it wraps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "transfer/transport.h"

namespace mooncake::testing {

struct TransportCounts {
  uint64_t rounds = 0;
  uint64_t messages = 0;
  uint64_t request_bytes = 0;                   // Of payload.
  uint64_t reply_bytes = 0;                     // Of payload.
  std::map<std::string, uint64_t> messages_to;  // By endpoint.
  std::map<uint16_t, uint64_t> messages_of;     // By type.
};

class CountingTransport final : public Transport {
 public:
  // Messages of the types in `ignored` pass uncounted: those that no caller waits for.
  explicit CountingTransport(Transport& inner, std::set<uint16_t> ignored = {})
      : inner_(inner), ignored_(std::move(ignored)) {}

  TransportCounts counts() const;
  // Starts again from zero; returns what was counted so far.
  TransportCounts Take();
  // Runs `act` on the caller's thread, once, before the next message of the type leaves.
  void BeforeNext(uint16_t type, std::function<void()> act);

  TransportCapabilities Capabilities() const override { return inner_.Capabilities(); }
  Result<std::string> Listen(const std::string& host, uint16_t port, Service* service) override {
    return inner_.Listen(host, port, service);
  }
  void CallMany(std::span<Call> calls) override;
  Result<std::string> RegisterMemory(MutableBytes range) override {
    return inner_.RegisterMemory(range);
  }
  void UnregisterMemory(MutableBytes range) override { inner_.UnregisterMemory(range); }
  void AccessMany(std::span<RemoteAccess> accesses) override { inner_.AccessMany(accesses); }
  void Forget(std::string_view endpoint) override { inner_.Forget(endpoint); }
  void Close() override { inner_.Close(); }

 private:
  Transport& inner_;
  const std::set<uint16_t> ignored_;
  void ActFirst(std::span<const Call> calls);

  mutable base::Mutex mu_;
  TransportCounts counts_ MC_GUARDED_BY(mu_);
  std::function<void()> act_ MC_GUARDED_BY(mu_);
  uint16_t act_before_ MC_GUARDED_BY(mu_) = 0;
};

}  // namespace mooncake::testing

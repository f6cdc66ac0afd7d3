// SimNode: one node of a simulated cluster, and the switches that a test turns on it.
//
// A pause is what SIGSTOP does: none of the node's threads goes past its next switch point, and
// what is sent to it waits. A kill is what SIGKILL looks like from outside: no call comes in or
// gets out, nothing of it reaches the metadata. Its threads cannot be torn away in the middle,
// so they run on, cut off for ever, until they are closed; what they answer is not heard.
//
// For sim threads only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/node.h"
#include "runtime/runtime.h"
#include "support/faulty_metadata.h"
#include "support/sim_metrics.h"
#include "transfer/memory/memory_network.h"

namespace mooncake::testing {

// A runtime whose threads can be stopped at their switch points.
class PausableRuntime final : public Runtime {
 public:
  // `wall_skew_ms`: by which its wall clock is ahead of the others'.
  PausableRuntime(Runtime& inner, uint64_t wall_skew_ms)
      : inner_(inner), wall_skew_ms_(wall_skew_ms), resumed_(inner.NewEvent()) {}
  void SetPaused(bool paused);
  // Returns when the node is not paused.
  void Gate();

  uint64_t NowMs() override { return inner_.NowMs(); }
  uint64_t NowNs() override { return inner_.NowNs(); }
  uint64_t WallMs() override { return inner_.WallMs() + wall_skew_ms_; }
  uint64_t Random() override { return inner_.Random(); }
  void SleepMs(uint64_t ms) override;
  void Yield() override;
  std::unique_ptr<Event> NewEvent() override;
  std::unique_ptr<Thread> Spawn(std::string name, std::function<void()> body) override;

 private:
  Runtime& inner_;
  const uint64_t wall_skew_ms_;
  std::unique_ptr<Event> resumed_;
  bool paused_ = false;
};

// Passes calls on, unless its node is dead.
class SeverableTransport final : public Transport {
 public:
  SeverableTransport(transfer::MemoryNetwork& network, PausableRuntime& runtime)
      : inner_(network), runtime_(runtime) {}
  void Sever() { severed_ = true; }

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
  transfer::MemoryTransport inner_;
  PausableRuntime& runtime_;
  bool severed_ = false;
};

class SimNode {
 public:
  SimNode(Runtime& runtime, transfer::MemoryNetwork& network, MetadataStore& metadata,
          uint64_t wall_skew_ms);

  // Joins the cluster.
  Status Start(const node::NodeConfig& config);
  // Leaves in good order.
  void Close();
  void SetPaused(bool paused);
  // From here on it is dead to everybody else. Close ends its threads.
  void Kill();

  bool dead() const { return dead_; }
  bool paused() const { return paused_; }
  // Part of the cluster and able to answer.
  bool live() const { return node_ != nullptr && !dead_ && !paused_ && !closing_; }
  bool closing() const { return closing_; }
  const std::string& stable_id() const { return stable_id_; }
  const std::string& name() const { return name_; }
  const std::string& endpoint() const { return endpoint_; }
  node::Node& node() { return *node_; }
  node::Core& core() { return node_->core(); }
  FaultyMetadata& metadata() { return metadata_; }
  // How often bytes that were read were not those that had been put.
  uint64_t mismatches() const { return metrics_.mismatches(); }

  // The verbs, as an embedding client calls them; kInvalidState once the node is closing.
  std::vector<Status> Put(const std::vector<std::string>& keys,
                          const std::vector<std::string>& values, bool if_absent,
                          const ReplicateConfig* replicate);
  std::vector<Result<std::string>> Get(const std::vector<std::string>& keys);
  std::vector<Result<Existence>> Exist(const std::vector<std::string>& keys);
  std::vector<Status> Remove(const std::vector<std::string>& keys);
  // Draining; moves what it has to the others. How many objects remain.
  Result<uint64_t> Evacuate();

  // The names of the key's authorities in this node's view, best first.
  std::vector<std::string> RanksOf(const std::string& key);

 private:
  std::vector<node::KeyRef> Refs(const std::vector<std::string>& keys);
  uint64_t Deadline() { return runtime_.NowMs() + request_timeout_ms_; }

  transfer::MemoryNetwork& network_;
  PausableRuntime runtime_;
  SeverableTransport transport_;
  FaultyMetadata metadata_;
  SimMetrics metrics_;
  uint64_t request_timeout_ms_ = 0;
  std::string stable_id_;
  std::string name_;
  std::string endpoint_;
  bool dead_ = false;
  bool paused_ = false;
  bool closing_ = false;
  std::unique_ptr<node::Node> node_;
};

}  // namespace mooncake::testing

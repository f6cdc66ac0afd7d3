// Nodes over the memory adapters, in one process: the world of the node layer's tests.
//
//   Simulated(1, [](TestCluster& cluster) {
//     auto& a = cluster.Start("a");
//     ASSERT_TRUE(a.Put("k", "v").ok());
//   });
//
// Under SimRuntime all of it happens in virtual time, in an order that the seed decides.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metadata/memory/memory_metadata.h"
#include "node/node.h"
#include "obs/null_metrics.h"
#include "runtime/runtime.h"
#include "support/counting_transport.h"
#include "support/faulty_metadata.h"
#include "transfer/memory/memory_network.h"

namespace mooncake::testing {

inline constexpr uint64_t kKiB = 1 << 10;
inline constexpr uint64_t kMiB = 1 << 20;

// Bytes that tell the key, the version and the position.
std::string ValueOf(std::string_view key, size_t size, uint64_t version = 0);

// One node with its own ends of the network and the metadata service.
class TestNode {
 public:
  TestNode(Runtime& runtime, transfer::MemoryNetwork& network,
           std::shared_ptr<metadata::MemoryState> state);

  Status Open(const node::NodeConfig& config);
  node::Node& node() { return *node_; }
  node::Core& core() { return node_->core(); }
  node::NodePorts ports() { return {runtime_, metadata, transport, metrics}; }
  std::string name() { return node_->name(); }
  void Close() { node_->Close(); }

  // --- The verbs, in the default scope ------------------------------------------------------
  node::KeyRef Ref(std::string_view key);  // Views `key`.
  Status Put(std::string_view key, std::string_view value, const ReplicateConfig* policy = nullptr,
             bool if_absent = false);
  std::vector<Status> PutAll(std::span<const std::string> keys, size_t size,
                             const ReplicateConfig* policy = nullptr);
  Result<std::string> Get(std::string_view key, uint64_t limit_ms = 20'000);
  std::vector<Result<uint64_t>> GetAll(std::span<const std::string> keys, size_t size);
  std::vector<Result<Existence>> ExistAll(std::span<const std::string> keys);
  Result<node::Route> Find(std::string_view key);
  Status Remove(std::string_view key);
  uint64_t UsedBytes() { return core().extents.Usage().first; }
  uint64_t Deadline(uint64_t ms = 20'000) { return runtime_.NowMs() + ms; }

 private:
  Runtime& runtime_;
  metadata::MemoryMetadata service_;
  transfer::MemoryTransport network_;

 public:
  FaultyMetadata metadata;
  CountingTransport transport;  // Counts what callers wait for.
  obs::NullMetrics metrics;

 private:
  std::unique_ptr<node::Node> node_;
};

class TestCluster {
 public:
  static constexpr uint64_t kStallMs = 2'000;
  explicit TestCluster(Runtime& runtime, uint64_t stall_ms = kStallMs);
  ~TestCluster();

  // Routed writes, a segment, short limits.
  static node::NodeConfig Config(std::string name, uint64_t segment_bytes = kMiB);
  // Starts a node and waits until all the others know it. Stops the test when it cannot.
  TestNode& Start(const node::NodeConfig& config);
  TestNode& Start(std::string name, uint64_t segment_bytes = kMiB) {
    node::NodeConfig config = Config(std::move(name), segment_bytes);
    config.options.stall_timeout_ms = stall_ms_;
    return Start(config);
  }
  // A node that has not joined yet.
  std::unique_ptr<TestNode> Make();
  // Waits until every node has the newest view and has sent what it had queued.
  void Settle();
  // No answer from it and none to it, as if its process were gone; its lease lapses.
  void Kill(TestNode& node);

  // The i-th key whose first authority is the node named `authority`.
  static std::string KeyAt(TestNode& asked, std::string_view authority, int i = 0);
  static std::vector<std::string> KeysAt(TestNode& asked, std::string_view authority, int count);

  Runtime& runtime() { return runtime_; }
  transfer::MemoryNetwork& network() { return network_; }
  metadata::MemoryState& state() { return *state_; }

 private:
  Runtime& runtime_;
  std::shared_ptr<metadata::MemoryState> state_;
  transfer::MemoryNetwork network_;
  const uint64_t stall_ms_;
  std::vector<std::unique_ptr<TestNode>> nodes_;
};

// Runs `body` with a cluster under a simulation of its own. A silent peer is given up after
// `stall_ms`.
void Simulated(uint64_t seed, const std::function<void(TestCluster&)>& body,
               uint64_t stall_ms = TestCluster::kStallMs);

}  // namespace mooncake::testing

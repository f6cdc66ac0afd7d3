// LocalStore: the Store that is a node itself (real mode). Checks arguments, adds the scope,
// counts, and hands over to the node's verbs.
#pragma once

#include <memory>

#include "client/call_metrics.h"
#include "client/hot_reads.h"
#include "client/memory_registry.h"
#include "client/node_gauges.h"
#include "mooncake/store.h"
#include "node/node.h"
#include "obs/metrics_hub.h"
#include "obs/prometheus_metrics.h"

namespace mooncake::client {

// What a LocalStore runs on, in order of construction.
struct StoreParts {
  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<obs::PrometheusMetrics> metrics;
  std::unique_ptr<MetadataStore> metadata;
  std::unique_ptr<Transport> transport;
  std::unique_ptr<LocalPool> pool;  // May be null.
  std::unique_ptr<HotReads> hot;    // May be null.
  std::unique_ptr<node::Node> node;
};

class LocalStore final : public Store {
 public:
  LocalStore(const StoreConfig& config, StoreParts parts);
  ~LocalStore() override;

  void Close() override;
  bool closed() const override { return closed_.load(); }
  std::vector<Status> PutMany(std::span<const PutItem> items, const PutOptions& options) override;
  std::vector<Result<uint64_t>> GetMany(std::span<const GetItem> items,
                                        std::string_view tenant) override;
  std::vector<Result<uint64_t>> GetManyAllocated(std::span<const std::string_view> keys,
                                                 std::string_view tenant,
                                                 const AllocateTarget& allocate) override;
  std::vector<Result<uint64_t>> GetRanges(std::span<const RangeItem> items,
                                          std::string_view tenant) override;
  std::vector<Result<Existence>> ExistMany(std::span<const std::string_view> keys,
                                           std::string_view tenant) override;
  std::vector<Status> RemoveMany(std::span<const std::string_view> keys,
                                 std::string_view tenant) override;
  Result<uint64_t> GetSize(std::string_view key, std::string_view tenant) override;
  Result<RouteInfo> QueryRoute(std::string_view key, std::string_view tenant) override;
  Result<uint64_t> RemoveAll(std::string_view tenant) override;

  Status RegisterBuffer(void* data, size_t size) override;
  Status UnregisterBuffer(void* data, std::optional<size_t> size) override;
  Status UnregisterWithin(const void* data, size_t size) override;
  bool IsRegistered(const void* data, size_t size) const override;
  bool IsWritable(const void* data, size_t size) const override;
  uint64_t LocalPoolCapacity() const override;
  std::optional<MutableBytes> LocalPoolTryAcquire(size_t size) override;
  void LocalPoolRelease(MutableBytes lease) override;

  std::string Hostname() const override;
  std::string NodeName() const override;
  Status Heartbeat(std::optional<uint64_t> expires_at_ms) override;
  std::vector<SegmentInfo> ListSegments(bool all) override;
  Status SetState(std::string_view state) override;
  Result<SegmentInfo> ExpandLocalMemory(uint64_t bytes) override;
  Status DrainSegment(const std::string& name) override;
  Result<bool> RetireSegment(const std::string& name) override;
  Result<uint64_t> EvacuateOwnedReplicas() override;
  // The same with a limit of its own, in the runtime's milliseconds.
  Result<uint64_t> EvacuateUntil(uint64_t deadline_ms);
  Result<uint64_t> SetTenantPolicy(std::string_view tenant, const TenantPolicy& policy,
                                   std::optional<uint64_t> expected_version) override;
  Result<TenantPolicyRecord> GetTenantPolicy(std::string_view tenant) override;
  Status DeleteTenantPolicy(std::string_view tenant,
                            std::optional<uint64_t> expected_version) override;
  Result<HandoffPlan> PlanHandoff(std::optional<uint64_t> successor_epoch,
                                  std::optional<uint64_t> deadline_ms) override;
  std::string MetricsText() override;
  void CountRefused() override;

  Status CheckHealth() override;

  // --- For a daemon, which reads and writes on behalf of others -------------------------------
  StoreParts& parts() { return parts_; }
  const StoreConfig& config() const { return config_; }
  CallMetrics& calls() { return calls_; }
  // As PutMany, while `wanted` says that the values may still be read and published.
  std::vector<Status> PutWanted(std::span<const PutItem> items, const PutOptions& options,
                                std::function<bool()> wanted);
  // The scope to use for a call, interned.
  Result<node::ScopeTable::Entry> EntryFor(std::string_view tenant);

 protected:
  int BeginHold() override { return parts_.node->gate().Enter(); }
  void EndHold(int hold) override { parts_.node->gate().Leave(hold); }

 private:
  routing::Scope ScopeFor(std::string_view tenant) const;
  // Copies the good keys' refs and remembers where they belong; others get their error.
  uint64_t Deadline() const;
  std::vector<Result<uint64_t>> Read(const node::ReadRequest& request);
  obs::MetricSet ReadMetrics();
  bool TracesItems(const CallMetrics::Call& call) const;
  template <typename Item, typename Outcome>
  void TraceItems(const CallMetrics::Call& call, std::string_view tenant,
                  std::span<const Item> items, const std::vector<Outcome>& outcomes);
  template <typename T>
  std::vector<Result<T>> Refuse(size_t count, const Error& error) const;

  const StoreConfig config_;
  StoreParts parts_;
  RangeTable ranges_;
  CallMetrics calls_;
  node::Core& core_;
  std::optional<node::ScopeTable::Entry> own_scope_;
  NodeGauges gauges_;
  std::atomic<bool> closed_{false};
  std::unique_ptr<obs::MetricsHub::Source> source_;  // Until the store is closed.
};

}  // namespace mooncake::client

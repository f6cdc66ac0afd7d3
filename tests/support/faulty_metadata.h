// A MetadataStore that passes calls on to another one, or fails as a test tells it to. Works
// under any Runtime, so also in simulation, where each call is a point to switch threads at.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "metadata/metadata_store.h"
#include "runtime/runtime.h"

namespace mooncake::testing {

enum class MetadataFault : uint8_t {
  kNone,
  kDown,            // Fails at once.
  kHung,            // Fails after the timeout.
  kSlow,            // Works after a while.
  kFailAfterApply,  // Applies the call, and then says that it failed.
  kDenied,          // Refuses the credentials.
};

class FaultyMetadata final : public MetadataStore {
 public:
  struct Options {
    uint64_t timeout_ms = 3'000;
    uint64_t slow_ms = 500;
  };

  // Both outlive this store.
  FaultyMetadata(MetadataStore& inner, Runtime& runtime) : FaultyMetadata(inner, runtime, {}) {}
  FaultyMetadata(MetadataStore& inner, Runtime& runtime, Options options);

  void SetFault(MetadataFault fault) { fault_ = fault; }
  // The next `calls` calls have the fault, those after them the one that was set.
  void FailNext(int calls, MetadataFault fault);
  // The fault of PutDocument, on top of what the others have.
  void SetPutFault(MetadataFault fault) { put_fault_ = fault; }
  // How often any method was called, whatever came of it.
  uint64_t calls() const { return calls_; }

  Result<NodeId> Acquire(const LeaseRecord& record, uint64_t ttl_ms, std::optional<uint64_t> beside,
                         bool replace) override;
  Result<RenewResult> Renew(const LeaseRecord& record, uint64_t ttl_ms) override;
  Status Release(const NodeId& id, uint32_t instance) override;
  Result<uint64_t> Poll() override;
  Result<MembershipChanges> ReadChanges(uint64_t since) override;
  Status ReportSuspect(const NodeId& id) override;
  Result<RoutePolicy> PutRoutePolicyIfAbsent(const RoutePolicy& policy) override;
  Result<Document> GetDocument(const std::string& name) override;
  Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                               uint64_t expected_version) override;
  Result<std::vector<NamedDocument>> ListDocuments(const std::string& prefix) override;
  void EndBy(uint64_t deadline_ms) override { end_by_ms_ = deadline_ms; }
  bool Denies() const override { return fault_ == MetadataFault::kDenied; }

 private:
  uint64_t MsUntil(uint64_t deadline_ms) {
    const uint64_t now_ms = runtime_.NowMs();
    return std::max(deadline_ms, now_ms) - now_ms;
  }
  template <typename Call>
  auto Pass(Call call, MetadataFault own = MetadataFault::kNone) -> decltype(call());

  MetadataStore& inner_;
  Runtime& runtime_;
  const Options options_;
  std::atomic<uint64_t> end_by_ms_ = UINT64_MAX;
  std::atomic<MetadataFault> fault_ = MetadataFault::kNone;
  std::atomic<MetadataFault> put_fault_ = MetadataFault::kNone;
  std::atomic<MetadataFault> next_fault_ = MetadataFault::kNone;
  std::atomic<int> next_calls_ = 0;
  std::atomic<uint64_t> calls_ = 0;
};

}  // namespace mooncake::testing

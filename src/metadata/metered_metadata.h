// MeteredMetadata: counts and times what goes to a metadata service.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "metadata/metadata_store.h"
#include "obs/metrics.h"
#include "obs/phase_span.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

class MeteredMetadata final : public MetadataStore {
 public:
  // `backend` is the scheme of its URL.
  MeteredMetadata(std::unique_ptr<MetadataStore> inner, std::string backend, Runtime& runtime,
                  Metrics& metrics)
      : inner_(std::move(inner)),
        backend_(std::move(backend)),
        runtime_(runtime),
        metrics_(metrics) {}

  Result<NodeId> Acquire(const LeaseRecord& record, uint64_t ttl_ms, std::optional<uint64_t> beside,
                         bool replace) override {
    return Metered("metadata.acquire",
                   [&] { return inner_->Acquire(record, ttl_ms, beside, replace); });
  }
  Result<RenewResult> Renew(const LeaseRecord& record, uint64_t ttl_ms) override {
    return Metered("metadata.renew", [&] { return inner_->Renew(record, ttl_ms); });
  }
  Status Release(const NodeId& id, uint32_t instance) override {
    return Metered("metadata.release", [&] { return inner_->Release(id, instance); });
  }
  Result<uint64_t> Poll() override {
    return Metered("metadata.poll", [&] { return inner_->Poll(); });
  }
  Result<MembershipChanges> ReadChanges(uint64_t since) override {
    return Metered("metadata.read_changes", [&] { return inner_->ReadChanges(since); });
  }
  Status ReportSuspect(const NodeId& id) override {
    return Metered("metadata.report_suspect", [&] { return inner_->ReportSuspect(id); });
  }
  Result<RoutePolicy> PutRoutePolicyIfAbsent(const RoutePolicy& policy) override {
    return Metered("metadata.put_route_policy",
                   [&] { return inner_->PutRoutePolicyIfAbsent(policy); });
  }
  Result<Document> GetDocument(const std::string& name) override {
    return Metered("metadata.get_document", [&] { return inner_->GetDocument(name); });
  }
  Result<uint64_t> PutDocument(const std::string& name, const std::string& text,
                               uint64_t expected_version) override {
    return Metered("metadata.put_document",
                   [&] { return inner_->PutDocument(name, text, expected_version); });
  }
  Result<std::vector<NamedDocument>> ListDocuments(const std::string& prefix) override {
    return Metered("metadata.list_documents", [&] { return inner_->ListDocuments(prefix); });
  }
  void EndBy(uint64_t deadline_ms) override { inner_->EndBy(deadline_ms); }
  bool Denies() const override { return inner_->Denies(); }

 private:
  static constexpr size_t kSpanPrefixSize = sizeof("metadata.") - 1;

  template <typename Ask>
  std::invoke_result_t<Ask> Metered(const char* span_name, const Ask& ask) {
    const Labels labels{{"backend", backend_}, {"operation", span_name + kSpanPrefixSize}};
    Gauge& inflight = metrics_.GetGauge("metadata_operation_inflight", labels);
    inflight.Add(1);
    const uint64_t start_ns = runtime_.NowNs();
    obs::PhaseSpan span(runtime_, span_name);
    span.backend(backend_);
    auto result = ask();
    if (!result.ok()) span.result("error");
    Note(labels, result.code(), runtime_.NowNs() - start_ns);
    inflight.Add(-1);
    return result;
  }
  void Note(Labels labels, ErrorCode code, uint64_t ns) {
    labels["result"] = code == ErrorCode::kOk         ? "ok"
                       : code == ErrorCode::kConflict ? "conflict"
                                                      : "error";
    metrics_.GetCounter("metadata_operation_total", labels).Increment();
    metrics_.GetHistogram("metadata_operation_duration_seconds", labels).ObserveNs(ns);
  }

  const std::unique_ptr<MetadataStore> inner_;
  const std::string backend_;
  Runtime& runtime_;
  Metrics& metrics_;
};

}  // namespace mooncake::metadata

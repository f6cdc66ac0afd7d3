#include "support/faulty_metadata.h"

namespace mooncake::testing {

FaultyMetadata::FaultyMetadata(MetadataStore& inner, Runtime& runtime, Options options)
    : inner_(inner), runtime_(runtime), options_(options) {}

void FaultyMetadata::FailNext(int calls, MetadataFault fault) {
  next_fault_ = fault;
  next_calls_ = calls;
}

template <typename Call>
auto FaultyMetadata::Pass(Call call, MetadataFault own) -> decltype(call()) {
  ++calls_;
  runtime_.Yield();
  MetadataFault fault = fault_;
  int left = next_calls_;
  while (left > 0 && !next_calls_.compare_exchange_weak(left, left - 1)) {
  }
  if (left > 0) fault = next_fault_;
  if (fault == MetadataFault::kNone) fault = own;
  switch (fault) {
    case MetadataFault::kDown: return MetadataError("injected: the service is down");
    case MetadataFault::kDenied: return MetadataError("injected: wrong credentials");
    case MetadataFault::kHung:
      runtime_.SleepMs(std::min(options_.timeout_ms, MsUntil(end_by_ms_)));
      return MetadataError("injected: the service does not answer");
    case MetadataFault::kSlow: runtime_.SleepMs(options_.slow_ms); return call();
    case MetadataFault::kFailAfterApply: {
      const bool applied = call().ok();
      return MetadataError(applied ? "injected: the answer was lost" : "injected: lost anyway");
    }
    case MetadataFault::kNone: break;
  }
  return call();
}

Result<NodeId> FaultyMetadata::Acquire(const LeaseRecord& record, uint64_t ttl_ms,
                                       std::optional<uint64_t> beside, bool replace) {
  return Pass([&] { return inner_.Acquire(record, ttl_ms, beside, replace); });
}

Result<RenewResult> FaultyMetadata::Renew(const LeaseRecord& record, uint64_t ttl_ms) {
  return Pass([&] { return inner_.Renew(record, ttl_ms); });
}

Status FaultyMetadata::Release(const NodeId& id, uint32_t instance) {
  return Pass([&] { return inner_.Release(id, instance); });
}

Result<uint64_t> FaultyMetadata::Poll() {
  return Pass([&] { return inner_.Poll(); });
}

Result<MembershipChanges> FaultyMetadata::ReadChanges(uint64_t since) {
  return Pass([&] { return inner_.ReadChanges(since); });
}

Status FaultyMetadata::ReportSuspect(const NodeId& id) {
  return Pass([&] { return inner_.ReportSuspect(id); });
}

Result<RoutePolicy> FaultyMetadata::PutRoutePolicyIfAbsent(const RoutePolicy& policy) {
  return Pass([&] { return inner_.PutRoutePolicyIfAbsent(policy); });
}

Result<MetadataStore::Document> FaultyMetadata::GetDocument(const std::string& name) {
  return Pass([&] { return inner_.GetDocument(name); });
}

Result<uint64_t> FaultyMetadata::PutDocument(const std::string& name, const std::string& text,
                                             uint64_t expected_version) {
  return Pass([&] { return inner_.PutDocument(name, text, expected_version); }, put_fault_);
}

Result<std::vector<MetadataStore::NamedDocument>> FaultyMetadata::ListDocuments(
    const std::string& prefix) {
  return Pass([&] { return inner_.ListDocuments(prefix); });
}

}  // namespace mooncake::testing

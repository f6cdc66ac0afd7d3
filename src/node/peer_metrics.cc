#include "node/peer_metrics.h"

#include <string>

namespace mooncake::node {

namespace {

// What the calls of a type are called among the operations; what moves values is a phase of a call.
const char* NameOf(MessageType type) {
  switch (type) {
    case MessageType::kPing: return "control_ping";
    case MessageType::kPut:
    case MessageType::kWrite: return "put_remote_batch_write";
    case MessageType::kGet: return "get_remote_batch_chunk";
    case MessageType::kRead: return "get_remote_batch_direct";
    case MessageType::kExist:
    case MessageType::kRoute: return "control_route_batch_get";
    case MessageType::kPublish: return "control_route_batch_cas";
    case MessageType::kRemove:
    case MessageType::kRemoveAll: return "control_route_batch_remove";
    case MessageType::kNotice: return "control_allocator_batch_release";
    case MessageType::kCheck: return "control_route_batch_check";
    case MessageType::kPull:
    case MessageType::kInventory: return "control_route_list_by_replica_owner";
    case MessageType::kMirror: return "control_route_batch_replace";
    case MessageType::kMigrate: return "control_route_migrate";
    case MessageType::kQuotaCharge:
    case MessageType::kQuotaGrant: return "control_quota_reserve";
    case MessageType::kQuotaSurvey: return "control_quota_survey";
  }
  return "control_unknown";
}

}  // namespace

void PeerMetrics::Note(MessageType type, bool ok, uint64_t ns) {
  const auto index = static_cast<size_t>(type);
  if (index >= kTypes) return;
  Series& series = series_[index][ok ? 1 : 0];
  Histogram* duration = series.duration.load(std::memory_order_acquire);
  if (duration == nullptr) {
    Labels labels{{"operation", NameOf(type)}, {"result", ok ? "ok" : "error"}};
    series.calls.store(&metrics_.GetCounter("operation_total", labels), std::memory_order_release);
    labels["scope"] = "control_plane";
    duration = &metrics_.GetHistogram("request_duration_seconds", labels);
    series.duration.store(duration, std::memory_order_release);
  }
  series.calls.load(std::memory_order_acquire)->Increment();
  duration->ObserveNs(ns);
}

}  // namespace mooncake::node

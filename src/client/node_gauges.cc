#include "client/node_gauges.h"

#include <algorithm>
#include <limits>

#include "metadata/records.h"

namespace mooncake::client {

namespace {

constexpr NodeState kStates[] = {NodeState::kStandby, NodeState::kActive, NodeState::kDraining,
                                 NodeState::kSealed, NodeState::kOffline};
constexpr double kHidden = std::numeric_limits<double>::quiet_NaN();

}  // namespace

NodeGauges::NodeGauges(Metrics& metrics, node::Core& core)
    : metrics_(metrics), core_(core), name_(core.membership.self_name()) {
  // Counters that are looked up when they are needed, from the start.
  const auto baseline = [&](const char* family, std::initializer_list<const char*> results) {
    for (const char* result : results) metrics.GetCounter(family, {{"result", result}});
  };
  baseline("membership_refresh_total", {"ok", "error"});
  baseline("checksum_validation_total", {"ok", "mismatch"});
  baseline("eviction_total", {"ok"});
  baseline("replication_publish_total", {"ok", "conflict", "error"});
  for (const char* action : {"expand", "drain", "retire"}) {
    metrics.GetCounter("segment_lifecycle_total", {{"action", action}, {"result", "ok"}});
  }
  metrics.GetCounter("rebalance_routes_total", {{"phase", "evacuation"}, {"result", "ok"}});
  metrics.GetCounter("rebalance_bytes_total", {{"phase", "evacuation"}});
  metrics.GetCounter("replica_shortfall_total", {});
  for (const char* reason : {"unavailable", "no_copy"}) {
    metrics.GetCounter("preferred_segment_skip_total", {{"source", "request"}, {"reason", reason}});
  }
  metrics.GetGauge("heartbeat_consecutive_failures", {{"runtime", name_}});
}

void NodeGauges::Set(const char* name, double value) {
  metrics_.GetGauge(name, {{"runtime", name_}}).Set(value);
}

void NodeGauges::RefreshRuntime() {
  const LeaseRecord record = core_.membership.record();
  for (const NodeState state : kStates) {
    metrics_
        .GetGauge("runtime_status",
                  {{"runtime", name_}, {"state", std::string(metadata::NodeStateName(state))}})
        .Set(record.state == state ? 1 : 0);
  }
  const uint64_t age_ms = core_.membership.LeaseAgeMs();
  Set("runtime_lease_age_ms", static_cast<double>(age_ms));
  Set("runtime_lease_expires_at_ms", static_cast<double>(core_.runtime.WallMs()) +
                                         static_cast<double>(core_.membership.lease_ttl_ms()) -
                                         static_cast<double>(age_ms));
  const node::ViewPtr view = core_.view();
  uint64_t reachable = 0;
  for (const routing::ViewNode& node : view->nodes()) {
    const bool self = node.lease.id.ToString() == name_;
    if (!self && !core_.membership.Suspected(node.lease.id)) ++reachable;
  }
  Set("reachable_peers", static_cast<double>(reachable));
  Set("membership_nodes", static_cast<double>(view->nodes().size()));
  Set("membership_revision", static_cast<double>(view->revision()));
}

void NodeGauges::RefreshSegments() {
  const auto labels_of = [&](const std::pair<std::string, std::string>& key) {
    return Labels{
        {"runtime", name_}, {"segment", key.first}, {"state", key.second}, {"tier", "dram"}};
  };
  base::MutexLock lock(mu_);
  std::set<std::pair<std::string, std::string>> shown;
  for (const node::SegmentStats& stats : core_.extents.Stats()) {
    const std::pair key{stats.name, std::string(metadata::NodeStateName(stats.state))};
    shown.insert(key);
    metrics_.GetGauge("segment_capacity_bytes", labels_of(key))
        .Set(static_cast<double>(stats.capacity_bytes));
    metrics_.GetGauge("segment_used_bytes", labels_of(key))
        .Set(static_cast<double>(stats.used_bytes));
  }
  for (const auto& key : segments_) {
    if (shown.contains(key)) continue;  // A segment that changed its state, or is gone.
    metrics_.GetGauge("segment_capacity_bytes", labels_of(key)).Set(kHidden);
    metrics_.GetGauge("segment_used_bytes", labels_of(key)).Set(kHidden);
  }
  segments_.merge(shown);
}

void NodeGauges::RefreshCounts() {
  const node::RouteTable::PublishCounts counts = core_.routes.publish_counts();
  const std::pair<const char*, uint64_t> results[] = {{"ok", counts.ok},
                                                      {"conflict", counts.conflict}};
  base::MutexLock lock(mu_);
  for (const auto& [result, count] : results) {
    Counter& counter = metrics_.GetCounter("route_cas_total", {{"result", result}});
    counter.Add(count - std::min(count, counter.Value()));
  }
}

void NodeGauges::Refresh() {
  RefreshCounts();
  RefreshRuntime();
  RefreshSegments();
  metrics_.GetGauge("object_routes", {}).Set(static_cast<double>(core_.routes.route_count()));
  metrics_.GetGauge("replica_distribution", {{"runtime", name_}, {"tier", "dram"}})
      .Set(static_cast<double>(core_.extents.extent_count()));
}

}  // namespace mooncake::client

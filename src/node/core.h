// Core: the parts of a node that its verbs share, built and owned by Node. Plain references:
// whoever gets a Core& may use all of it for as long as the Node lives.
#pragma once

#include "base/gate.h"
#include "node/dedup.h"
#include "node/extent_store.h"
#include "node/membership.h"
#include "node/peers.h"
#include "node/room.h"
#include "node/route_table.h"
#include "node/tenant_meter.h"
#include "node/types.h"
#include "obs/metrics.h"
#include "runtime/runtime.h"

namespace mooncake::node {

class Evictor;
class MigrationWorker;
class Outbox;
class QuotaLedger;

struct NodeOptions {
  routing::Scope scope;  // Of requests that name none.
  std::string pool;      // Placement keeps to nodes with the same label; empty: all.
  bool routed_writes = false;
  uint32_t replica_count = 1;
  uint32_t route_topk = 2;
  uint64_t request_timeout_ms = 65'000;
  uint64_t stall_timeout_ms = 10'000;
  // How long a request waits for a dead authority's slots to be taken over.
  uint64_t takeover_wait_ms = 3'000;
  uint32_t high_watermark_percent = 90;
  uint32_t low_watermark_percent = 80;
};

struct Core {
  const NodeOptions& options;
  const base::Gate& gate;  // Closed: the node leaves.
  Runtime& runtime;
  Metrics& metrics;
  Membership& membership;
  Peers& peers;
  NameTable& names;
  ScopeTable& scopes;
  ExtentStore& extents;
  RouteTable& routes;
  DedupTable& dedup;
  RoomTable& rooms;
  Evictor& evictor;
  Outbox& outbox;
  MigrationWorker& migrations;
  TenantMeter& meter;
  QuotaLedger& ledger;
  Counter& checksums_right;  // Values that were read and were those that had been put.

  ViewPtr view() const { return membership.view(); }
};

// Gives back what a change took out of use: our own extent at once, others' through the outbox.
void Release(Core& core, const Superseded& superseded);

}  // namespace mooncake::node

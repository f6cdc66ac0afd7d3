#include "node/node.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "node/takeover.h"
#include "obs/log.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kHolderPingMs = 2'000;
constexpr uint64_t kCallersLeaveMs = 3'000;
constexpr uint64_t kFlushMs = 1'000;
// For each farewell to the metadata service; a lease that is not released lapses by itself.
constexpr uint64_t kFarewellMs = 1'500;
constexpr uint64_t kHopelessMs = 200;  // After one that was not heard.
constexpr uint64_t kTellMs = 1'500;
constexpr uint64_t kFirstViewMs = 5'000;
// Of the members, who are asked whether we are of one cluster before it counts on this node.
constexpr size_t kAskedForSecretMax = 8;
constexpr uint64_t kAskForSecretMs = 1'000;
}  // namespace

Node::Node(const NodeConfig& config, NodePorts ports, Private)
    : config_(config),
      ports_(ports),
      meter_(scopes_, ports.metrics),
      handoff_stop_(ports.runtime.NewEvent()) {}

Result<std::unique_ptr<Node>> Node::Start(const NodeConfig& config, NodePorts ports) {
  auto node = std::make_unique<Node>(config, ports, Private{});
  if (Status status = node->Open(); !status) {
    node->Close();
    return std::move(status).error();
  }
  return node;
}

Node::~Node() { Close(); }

std::vector<SegmentRecord> Node::SegmentRecords() const {
  std::vector<SegmentRecord> records;
  for (const SegmentStats& stats : extents_.Stats()) {
    records.push_back({stats.name, stats.capacity_bytes, stats.used_bytes, stats.state});
  }
  return records;
}

Status Node::MapSegment() {
  if (config_.segment_bytes == 0) return Ok();
  auto memory = config_.shared_segments
                    ? MappedMemory::MapShared(config_.segment_bytes, config_.hugepage_bytes, true)
                    : MappedMemory::Map(config_.segment_bytes, config_.hugepage_bytes);
  if (!memory) {
    return Error{memory.code(), fmt::format("global_segment_size is {}: {}", config_.segment_bytes,
                                            memory.error().context)};
  }
  extents_.AddSegment(config_.segment_name, *std::move(memory));
  return Ok();
}

Status Node::Listen() {
  auto endpoint = ports_.transport.Listen(config_.listen_host, config_.listen_port, &service_);
  if (!endpoint) {
    return Error{endpoint.code(),
                 fmt::format("local_hostname is \"{}\", transport_rpc_port is {}; allowed: an "
                             "address of this host and a free port, or 0: {}",
                             config_.listen_host, config_.listen_port, endpoint.error().context)};
  }
  endpoint_ = *std::move(endpoint);
  return Ok();
}

Status Node::Open() {
  MC_RETURN_IF_ERROR(MapSegment());
  MC_RETURN_IF_ERROR(Listen());
  MembershipOptions options = config_.membership;
  options.pool = config_.options.pool;
  membership_ =
      std::make_unique<Membership>(options, ports_.runtime, ports_.metadata, ports_.metrics);
  MC_RETURN_IF_ERROR(JoinCluster());
  MC_RETURN_IF_ERROR(CheckVersions());
  routes_ = std::make_unique<RouteTable>(extents_, membership_->slots(), &meter_);
  MC_RETURN_IF_ERROR(CheckSecret());
  names_ = std::make_unique<NameTable>(membership_->self_name());
  peers_ = std::make_unique<Peers>(ports_.runtime, ports_.transport, *membership_, ports_.metrics,
                                   config_.options.stall_timeout_ms);
  evictor_ = std::make_unique<Evictor>(ports_.runtime, ports_.metrics);
  outbox_ = std::make_unique<Outbox>(ports_.runtime, ports_.metrics);
  reconciler_ =
      std::make_unique<Reconciler>(ports_.runtime, ports_.metrics, config_.membership.lease_ttl_ms);
  migrations_ = std::make_unique<MigrationWorker>(ports_.runtime);
  core_ = std::make_unique<Core>(
      Core{config_.options, gate_, ports_.runtime, ports_.metrics, *membership_, *peers_, *names_,
           scopes_, extents_, *routes_, dedup_, rooms_, *evictor_, *outbox_, *migrations_, meter_,
           ledger_, ports_.metrics.GetCounter("checksum_validation_total", {{"result", "ok"}})});
  evictor_->Start(*core_);
  outbox_->Start(*core_);
  reconciler_->Start(*core_);
  migrations_->Start(*core_);
  service_.Open(*core_);
  membership_->Start(
      [this](const ViewPtr& before, const ViewPtr& after) { ApplyNewView(before, after); },
      [this](LeaseRecord& record) { record.segments = SegmentRecords(); });
  MC_RETURN_IF_ERROR(Announce(config_.initial_state, true));
  if (config_.initial_state == NodeState::kStandby) {
    handoff_watch_ = ports_.runtime.Spawn("mc-handoff", [this] { WatchHandoff(); });
  }
  return Ok();
}

Status Node::JoinCluster() {
  LeaseRecord record;
  record.id.stable_id = config_.stable_id;
  // Nobody calls an offline node; it becomes what was asked for once it can answer.
  record.state = NodeState::kOffline;
  record.protocol_minor = config_.protocol_minor;
  record.endpoint = endpoint_;
  record.host = config_.host_id;
  record.pid = config_.pid;
  record.instance = static_cast<uint32_t>(ports_.runtime.Random() | 1);  // Never 0.
  extents_.SetInstance(record.instance);
  record.labels = config_.labels;
  record.segments = SegmentRecords();
  return membership_->Join(record, config_.succeeds,
                           ports_.runtime.NowMs() + config_.startup_timeout_ms,
                           [this](const LeaseRecord& holder) { return Ask(holder); });
}

HolderAnswer Node::Ask(const LeaseRecord& holder) {
  if (holder.host == config_.host_id && holder.pid == config_.pid && config_.pid != 0 &&
      holder.endpoint == endpoint_) {
    return HolderAnswer::kGone;  // Its port is ours now.
  }
  MessageReply reply;
  v1::PingRequest ping;
  const std::string message = ping.SerializeAsString();
  Call call;
  call.endpoint = holder.endpoint;
  call.type = static_cast<uint16_t>(MessageType::kPing);
  call.message = message;
  call.deadline_ms = ports_.runtime.NowMs() + kHolderPingMs;
  call.observer = &reply;
  ports_.transport.CallMany({&call, 1});
  if (call.failure == CallFailure::kStranger) return HolderAnswer::kStranger;
  if (!call.status.ok()) {
    return call.failure == CallFailure::kRefused ? HolderAnswer::kGone : HolderAnswer::kSilent;
  }
  v1::PingReply pong;
  const bool same = pong.ParseFromString(reply.text) && pong.node() == holder.id.ToString() &&
                    (holder.instance == 0 || pong.instance() == holder.instance);
  if (!same) return HolderAnswer::kGone;
  return pong.leaving() ? HolderAnswer::kLeaving : HolderAnswer::kAlive;
}

Status Node::CheckVersions() const {
  const uint32_t ours = LeaseRecord().protocol_major;
  const ViewPtr view = membership_->view();
  for (const routing::ViewNode& node : view->nodes()) {
    if (node.lease.protocol_major == ours) continue;
    return Unsupported(fmt::format(
        "node {} at {} speaks protocol {}, this one {}: the nodes of a cluster, which is "
        "a metadata_url and a keyspace, need the same",
        node.lease.id.ToString(), node.lease.endpoint, node.lease.protocol_major, ours));
  }
  return Ok();
}

Status Node::CheckSecret() {
  const ViewPtr view = membership_->view();
  const std::string message = v1::PingRequest().SerializeAsString();
  std::array<MessageReply, kAskedForSecretMax> replies;
  std::vector<Call> calls;
  std::vector<std::string> names;
  for (const routing::ViewNode& node : view->nodes()) {
    if (calls.size() == kAskedForSecretMax) break;
    if (node.lease.id == membership_->self() || !node.readable) continue;
    Call& call = calls.emplace_back();
    call.endpoint = node.lease.endpoint;
    call.type = static_cast<uint16_t>(MessageType::kPing);
    call.message = message;
    call.deadline_ms = ports_.runtime.NowMs() + kAskForSecretMs;
    call.observer = &replies[calls.size() - 1];
    names.push_back(node.lease.id.ToString());
  }
  if (calls.empty()) return Ok();
  ports_.transport.CallMany(calls);
  Status refused = Ok();
  for (size_t i = 0; i < calls.size(); ++i) {
    // One who knows the secret says enough: who refuses may be a stranger on a dead node's port.
    if (calls[i].status.ok()) return Ok();
    if (calls[i].failure != CallFailure::kStranger) continue;
    refused = TransportError(fmt::format(
        "cluster_secret (MC_STORE_RS_CLUSTER_SECRET) is not that of the cluster: node {}: {}",
        names[i], calls[i].status.error().context));
  }
  return refused;
}

Status Node::SetState(NodeState state) {
  const ViewPtr view = membership_->view();
  const routing::NodeIndex self = view->Find(membership_->self());
  const bool known = self != routing::kNoNode && view->node(self).lease.state == state;
  const bool or_undo = state == NodeState::kActive && !known;
  Status told = Announce(state, or_undo);
  return told.code() == ErrorCode::kMetadata && !or_undo ? Ok() : std::move(told);
}

Status Node::Announce(NodeState state, bool or_undo) {
  const auto change = [&](LeaseRecord& record) {
    record.state = state;
    record.segments = SegmentRecords();
  };
  MC_RETURN_IF_ERROR(membership_->Update(change, or_undo));
  // The others would learn of it within a second; a call right after this must not wait.
  RefreshViews(kFirstViewMs, state == NodeState::kActive);
  return Ok();
}

void Node::RefreshViews(uint64_t wait_ms, bool of_others) {
  membership_->RefreshTo(0, ports_.runtime.NowMs() + wait_ms);
  if (of_others) TellAll(membership_->view()->revision());
}

Status Node::PublishSegments() {
  const Status told =
      membership_->Update([&](LeaseRecord& record) { record.segments = SegmentRecords(); });
  return told.code() == ErrorCode::kMetadata ? Ok() : told;
}

void Node::TellAll(uint64_t revision) {
  const ViewPtr view = membership_->view();
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::PingRequest> pings;
  for (const routing::ViewNode& node : view->nodes()) {
    if (node.lease.id == membership_->self() || !node.readable) continue;
    peers.push_back(&node);
    v1::PingRequest& ping = pings.emplace_back();
    peers_->FillOrigin(false, ping.mutable_origin());
    ping.mutable_origin()->set_revision(revision);
  }
  if (peers.empty()) return;
  (void)peers_->AskMany<v1::PingReply, v1::PingRequest>(peers, MessageType::kPing, pings,
                                                        ports_.runtime.NowMs() + kTellMs);
}

void Node::Leave() {
  const auto farewell_within = [this](uint64_t ms) {
    ports_.metadata.EndBy(ports_.runtime.NowMs() + ms);
  };
  farewell_within(kFarewellMs);
  const ViewPtr view = membership_->view();
  const bool others = view->nodes().size() > 1;
  if (others && core_ != nullptr && routes_->route_count() > 0) {
    // While draining, the next ranks pull this node's slots; then its own replicas go.
    const Status draining =
        membership_->Update([](LeaseRecord& record) { record.state = NodeState::kDraining; });
    if (draining.ok()) {
      membership_->RefreshTo(0, ports_.runtime.NowMs() + kTellMs);
      TellAll(membership_->view()->revision());
    }
    farewell_within(draining.ok() ? kFarewellMs : kHopelessMs);
  }
  const bool had_bytes = extents_.Usage().first > 0;
  const Result<uint64_t> revision = membership_->Leave();
  if (revision.ok() && others && had_bytes && core_ != nullptr) TellAll(*revision);
}

void Node::Close() {
  if (closed_.exchange(true)) return;
  gate_.Close();
  const uint64_t limit_ms = ports_.runtime.NowMs() + kCallersLeaveMs;
  if (peers_) peers_->EndBy(limit_ms + kCallersLeaveMs);  // Not held up by a silent peer.
  while (gate_.inside() > 0 && ports_.runtime.NowMs() < limit_ms) ports_.runtime.SleepMs(1);
  handoff_stop_->Set();
  ports_.metadata.EndBy(ports_.runtime.NowMs() + kFarewellMs);  // It may be asking.
  if (handoff_watch_) handoff_watch_->Join();
  if (migrations_) migrations_->Stop();
  if (reconciler_) reconciler_->Stop();
  if (evictor_) evictor_->Stop();
  if (outbox_) outbox_->Stop(ports_.runtime.NowMs() + kFlushMs);
  if (membership_) Leave();
  ports_.transport.Close();
  // Callers that outlasted the limit were ended by the transport.
  while (gate_.inside() > 0 && ports_.runtime.NowMs() < limit_ms + kCallersLeaveMs) {
    ports_.runtime.SleepMs(1);
  }
}

}  // namespace mooncake::node

#include "node/reconciler.h"

#include <algorithm>
#include <map>

#include "node/arrivals.h"
#include "node/outbox.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kCheckTimeoutMs = 3'000;
}  // namespace

Reconciler::Reconciler(Runtime& runtime, Metrics& metrics, uint64_t lease_ttl_ms)
    : runtime_(runtime),
      period_ms_(std::clamp<uint64_t>(lease_ttl_ms / 6, 4, kPeriodMsMax)),
      orphans_(metrics.GetCounter("orphan_extents_total", {})),
      work_(runtime.NewEvent()) {}

void Reconciler::Start(Core& core) {
  core_ = &core;
  thread_ = runtime_.Spawn("mc-reconcile", [this] { Loop(); });
}

void Reconciler::Stop() {
  stop_.store(true);
  work_->Set();
  if (thread_) thread_->Join();
  thread_.reset();
}

void Reconciler::Loop() {
  while (!stop_.load()) {
    work_->WaitUntil(runtime_.NowMs() + period_ms_ - runtime_.Random() % (period_ms_ / 4));
    if (!stop_.load()) RunOnce();
  }
}

void Reconciler::NoteTakeovers() {
  const ViewPtr view = core_->view();
  const ViewPtr last = std::exchange(last_view_, view);
  if (whole_rounds_ > 0) --whole_rounds_;
  if (!last || last == view) return;
  // Nodes that keep routes in the one view and not in the other.
  const auto differ = [](const routing::ClusterView& one, const routing::ClusterView& other) {
    return std::any_of(one.nodes().begin(), one.nodes().end(), [&](const routing::ViewNode& node) {
      const routing::NodeIndex index = other.Find(node.lease.id);
      return node.authority && (index == routing::kNoNode || !other.node(index).authority);
    });
  };
  if (differ(*last, *view) || differ(*view, *last)) whole_rounds_ = kWholeRounds;
}

void Reconciler::RunOnce() {
  const uint64_t now_ms = runtime_.NowMs();
  NoteTakeovers();
  std::vector<ExtentPin> doubtful;
  for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
    const size_t ahead =
        (shard + ExtentStore::kIndexShards - next_shard_) % ExtentStore::kIndexShards;
    for (ExtentPin& extent : core_->extents.ShardExtents(shard)) {
      const bool old = now_ms - std::min(now_ms, extent->created_ms()) >= period_ms_;
      const bool reserved = extent->state() == ExtentState::kReserved && old;
      const bool turn = (ahead < kLiveShardsPerRound || whole_rounds_ > 0) && old;
      if (reserved || turn) doubtful.push_back(std::move(extent));
    }
    if (stop_.load()) return;
    if (doubtful.size() >= kItemsPerMessageMax) {
      CheckExtents(doubtful);
      doubtful.clear();
    }
  }
  CheckExtents(doubtful);
  next_shard_ = (next_shard_ + kLiveShardsPerRound) % ExtentStore::kIndexShards;
  SweepOwners();
}

bool Reconciler::WriterGone(const Extent& extent, const routing::ClusterView& view) const {
  if (extent.writer() == kSelf) return false;
  return view.FindName(core_->names.NameOf(extent.writer())) == routing::kNoNode;
}

void Reconciler::Judge(const ExtentPin& extent, ItemCode code, Version version, uint64_t era) {
  if (code == kItemOk) {
    core_->extents.Commit(*extent, version);  // Of a live one at most the version changes.
    return;
  }
  if (code != CodeOf(ErrorCode::kNotFound)) return;
  if (version == 0 && IsUnheardOf(*core_, *extent, era)) return;
  if (extent->state() == ExtentState::kReserved) {
    const uint64_t age_ms = runtime_.NowMs() - extent->created_ms();
    // A publish that was sent at the last moment arrives within the stall limit, or never. The
    // writer's time is its own: of a drain or a migration it is much more than that of a request.
    const uint64_t writer_ms = extent->writer_until_ms() - extent->created_ms();
    const uint64_t limit_ms =
        std::max(core_->options.request_timeout_ms, writer_ms) + core_->options.stall_timeout_ms;
    const uint64_t patience_ms = core_->options.stall_timeout_ms;
    const bool gone = WriterGone(*extent, *core_->view()) && age_ms > patience_ms;
    const uint64_t abandoned_ms = extent->abandoned_ms();
    const bool abandoned = abandoned_ms != 0 && runtime_.NowMs() > abandoned_ms + patience_ms;
    if (!gone && !abandoned && age_ms < limit_ms) return;
  }
  if (core_->extents.Retire(*extent)) orphans_.Increment();
}

void Reconciler::CheckExtents(const std::vector<ExtentPin>& extents) {
  struct Batch {
    v1::CheckRequest request;
    std::unique_ptr<ScopeColumn> scopes;
    std::vector<ExtentPin> extents;
    uint64_t bytes = 0;
  };
  const ViewPtr view = core_->view();
  const routing::NodeIndex self = view->FindName(core_->membership.self_name());
  std::map<routing::NodeIndex, Batch> batches;
  for (const ExtentPin& extent : extents) {
    const KeyRef ref = extent->ref();
    Version version = 0;
    const ItemCode here = core_->routes.Check(ref, extent->place(), false, &version);
    if (here != kItemRetryLater && here != kItemWrongAuthority) {
      Judge(extent, here, version, core_->routes.EraOf(core_->routes.SlotOf(ref)));
      continue;
    }
    const auto ranks = view->RanksOf(ref.hash);
    if (ranks.empty() || ranks[0] == self) continue;
    Batch& batch = batches[ranks[0]];
    if (IsFull(batch.extents.size(), batch.bytes)) continue;  // Its turn comes again.
    if (!batch.scopes) {
      batch.scopes = std::make_unique<ScopeColumn>(core_->scopes, batch.request.mutable_scopes());
      core_->peers.FillOrigin(false, batch.request.mutable_origin());
    }
    KeyedRoute keyed;
    keyed.ref = ref;
    keyed.key = std::string(ref.key);
    keyed.route.replicas = {extent->place()};
    batch.bytes += WriteKeyedRoute(keyed, *batch.scopes, core_->names, batch.request.add_extents());
    batch.extents.push_back(extent);
  }
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::CheckRequest> requests;
  for (auto& [index, batch] : batches) {
    peers.push_back(&view->node(index));
    requests.push_back(std::move(batch.request));
  }
  if (peers.empty()) return;
  auto replies = core_->peers.AskMany<v1::CheckReply, v1::CheckRequest>(
      peers, MessageType::kCheck, requests, runtime_.NowMs() + kCheckTimeoutMs);
  size_t r = 0;
  for (auto& [index, batch] : batches) {
    const Result<v1::CheckReply>& reply = replies[r++];
    const bool whole = reply.ok() &&
                       reply->codes_size() == static_cast<int>(batch.extents.size()) &&
                       reply->versions_size() == reply->codes_size();
    for (size_t i = 0; whole && i < batch.extents.size(); ++i) {
      const int item = static_cast<int>(i);
      const uint64_t era = reply->eras_size() == reply->codes_size() ? reply->eras(item) : 0;
      Judge(batch.extents[i], reply->codes(item), reply->versions(item), era);
    }
  }
}

void Reconciler::SweepOwners() {
  const ViewPtr view = core_->view();
  std::set<NameIndex> missing;
  std::set<NameIndex> present{kSelf};
  const uint64_t changed = core_->routes.SweepOwners([&](const Place& place) {
    const NameIndex owner = place.owner;
    if (present.contains(owner)) return false;
    if (!missing.contains(owner)) {
      const bool known = view->FindName(core_->names.NameOf(owner)) != routing::kNoNode;
      (known ? present : missing).insert(owner);
      if (known) return false;
    }
    return missing_owners_.contains(owner);
  });
  missing_owners_.swap(missing);
  if (changed > 0) core_->metrics.GetCounter("routes_swept_total", {}).Add(changed);
}

}  // namespace mooncake::node

#include "node/outbox.h"

#include <algorithm>

#include "obs/phase_span.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kSendTimeoutMs = 5'000;
constexpr uint64_t kIdleWaitMs = 1'000;
constexpr uint64_t kCoalesceMs = 2;

// Whether a later incarnation of the node is there: the named one will not come back.
bool IsSucceeded(const routing::ClusterView& view, const std::string& name) {
  const Result<NodeId> id = ParseNodeName(name);
  if (!id) return true;
  const routing::NodeIndex heir = view.FindStable(id->stable_id);
  return heir != routing::kNoNode && view.node(heir).lease.id.epoch > id->epoch;
}
}  // namespace

Outbox::Outbox(Runtime& runtime, Metrics& metrics)
    : runtime_(runtime),
      dropped_(metrics.GetCounter("outbox_dropped_total", {})),
      released_own_(
          metrics.GetCounter("reclaim_release_total", {{"action", "own"}, {"result", "ok"}})),
      released_remote_(
          metrics.GetCounter("reclaim_release_total", {{"action", "remote"}, {"result", "ok"}})),
      work_(runtime.NewEvent()),
      sent_(runtime.NewEvent()) {}

void Outbox::Start(Core& core) {
  core_ = &core;
  thread_ = runtime_.Spawn("mc-outbox", [this] { Loop(); });
}

void Outbox::Stop(uint64_t deadline_ms) {
  if (thread_) Flush(deadline_ms);
  stop_.store(true);
  work_->Set();
  if (thread_) thread_->Join();
  thread_.reset();
  dropped_.Add(std::exchange(later_size_, 0));
}

void Outbox::Push(NameIndex owner, Notice notice) {
  {
    base::MutexLock lock(mu_);
    if (queues_.size >= kQueueMax) {
      dropped_.Increment();
      return;
    }
    queues_.notices[owner].push_back(notice);
    ++queues_.size;
    pushed_.fetch_add(1);
  }
  work_->Set();
}

void Outbox::Committed(const Place& place, Version version) {
  Push(place.owner, {place, version, 0});
}

void Outbox::Retired(const Place& place) { Push(place.owner, {place, 0, 0}); }

void Outbox::Mirror(const KeyRef& ref, Route route) {
  if (core_ == nullptr || core_->view()->Ranks(ref.slot()).size() < 2) return;  // Nobody to tell.
  {
    base::MutexLock lock(mu_);
    if (queues_.size >= kQueueMax) {
      dropped_.Increment();
      return;
    }
    KeyedRoute& keyed = queues_.mirrors.emplace_back();
    keyed.ref = {ref.hash, ref.scope, {}};
    keyed.key = std::string(ref.key);
    keyed.route = std::move(route);
    ++queues_.size;
    pushed_.fetch_add(1);
  }
  work_->Set();
}

bool Outbox::Flush(uint64_t deadline_ms) {
  const uint64_t target = pushed_.load();
  while (handled_.load() < target) {
    if (runtime_.NowMs() >= deadline_ms || stop_.load()) return false;
    sent_->Clear();
    work_->Set();
    if (handled_.load() >= target) break;
    sent_->WaitUntil(std::min(deadline_ms, runtime_.NowMs() + 20));
  }
  return true;
}

void Outbox::Loop() {
  while (!stop_.load()) {
    work_->WaitUntil(runtime_.NowMs() + kIdleWaitMs);
    work_->Clear();
    runtime_.SleepMs(kCoalesceMs);
    Queues queues;
    {
      base::MutexLock lock(mu_);
      std::swap(queues, queues_);
    }
    const size_t count = queues.size;
    TakeDue(&queues);
    Send(queues);
    handled_.fetch_add(count);
    sent_->Set();
  }
}

void Outbox::Send(const Queues& queues) {
  obs::PhaseSpan span(runtime_, "control.replica_track");
  span.skip_when_empty();
  span.items(queues.size);
  const ViewPtr view = core_->view();
  if (!queues.notices.empty()) SendNotices(*view, queues.notices);
  if (!queues.mirrors.empty()) SendMirrors(*view, queues.mirrors);
}

void Outbox::SendNotices(const routing::ClusterView& view,
                         const std::map<NameIndex, std::vector<Notice>>& notices) {
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::NoticeRequest> requests;
  std::vector<std::pair<NameIndex, std::span<const Notice>>> sent;
  for (const auto& [owner, list] : notices) {
    const std::string name = core_->names.NameOf(owner);
    const routing::NodeIndex index = view.FindName(name);
    if (index == routing::kNoNode) {
      // It has just joined, or it lost its lease and may come back; or its space has gone with it.
      if (!IsSucceeded(view, name)) TryLater(owner, list);
      continue;
    }
    for (size_t begin = 0; begin < list.size(); begin += kBatchMax) {
      peers.push_back(&view.node(index));
      v1::NoticeRequest& request = requests.emplace_back();
      core_->peers.FillOrigin(false, request.mutable_origin());
      request.set_owner(name);
      const size_t end = std::min(list.size(), begin + kBatchMax);
      sent.emplace_back(owner, std::span(list).subspan(begin, end - begin));
      for (const Notice& notice : sent.back().second) {
        const bool live = notice.version != 0;
        if (live) request.add_versions(notice.version);
        WritePlace(notice.place, core_->names,
                   live ? request.add_committed() : request.add_retired());
      }
    }
  }
  if (peers.empty()) return;
  auto replies = core_->peers.AskMany<v1::NoticeReply, v1::NoticeRequest>(
      peers, MessageType::kNotice, requests, runtime_.NowMs() + kSendTimeoutMs);
  for (size_t i = 0; i < replies.size(); ++i) {
    if (!replies[i].ok()) TryLater(sent[i].first, sent[i].second);
  }
}

void Outbox::TryLater(NameIndex owner, std::span<const Notice> notices) {
  for (const Notice& notice : notices) {
    if (notice.tries + 1 >= kTriesMax || later_size_ >= kQueueMax) {
      dropped_.Increment();
      continue;
    }
    if (later_.empty()) later_ms_ = runtime_.NowMs() + kIdleWaitMs;
    later_[owner].push_back({notice.place, notice.version, notice.tries + 1});
    ++later_size_;
  }
}

void Outbox::TakeDue(Queues* queues) {
  if (later_.empty() || runtime_.NowMs() < later_ms_) return;
  for (auto& [owner, notices] : later_) {
    std::vector<Notice>& queue = queues->notices[owner];
    queue.insert(queue.begin(), notices.begin(), notices.end());
  }
  later_.clear();
  later_size_ = 0;
}

void Outbox::SendMirrors(const routing::ClusterView& view, const std::vector<KeyedRoute>& mirrors) {
  struct Batch {
    v1::MirrorRequest request;
    std::unique_ptr<ScopeColumn> scopes;
  };
  std::map<routing::NodeIndex, Batch> batches;
  const routing::NodeIndex self = view.FindName(core_->membership.self_name());
  for (const KeyedRoute& keyed : mirrors) {
    const auto ranks = view.Ranks(keyed.ref.slot());
    const size_t copies = std::min<size_t>(ranks.size(), core_->options.route_topk);
    for (size_t rank = 1; rank < copies; ++rank) {
      if (ranks[rank] == self) continue;
      Batch& batch = batches[ranks[rank]];
      if (!batch.scopes) {
        batch.scopes = std::make_unique<ScopeColumn>(core_->scopes, batch.request.mutable_scopes());
      }
      WriteKeyedRoute(keyed, *batch.scopes, core_->names, batch.request.add_routes());
    }
  }
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::MirrorRequest> requests;
  for (auto& [index, batch] : batches) {
    core_->peers.FillOrigin(false, batch.request.mutable_origin());
    peers.push_back(&view.node(index));
    requests.push_back(std::move(batch.request));
  }
  if (peers.empty()) return;
  auto replies = core_->peers.AskMany<v1::MirrorReply, v1::MirrorRequest>(
      peers, MessageType::kMirror, requests, runtime_.NowMs() + kSendTimeoutMs);
  for (const auto& reply : replies) {
    if (!reply.ok()) dropped_.Increment();
  }
}

void Release(Core& core, const Superseded& superseded) {
  if (superseded.local) {
    core.extents.Retire(*superseded.local);
    core.outbox.NoteReleased(true);
  }
  for (const Place& place : superseded.remote) {
    core.outbox.Retired(place);
    core.outbox.NoteReleased(false);
  }
}

}  // namespace mooncake::node

#include "node/outbox.h"

#include <algorithm>

#include "node/wire.h"
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
  for (size_t i = 0; i < kThreads; ++i) {
    Event* const turn = turns_.emplace_back(runtime_.NewEvent()).get();
    threads_.push_back(runtime_.Spawn("mc-outbox", [this, turn] { Loop(*turn); }));
  }
}

void Outbox::Stop(uint64_t deadline_ms) {
  if (!threads_.empty()) Flush(deadline_ms);
  stop_.store(true);
  work_->Set();
  for (auto& turn : turns_) turn->Set();
  for (auto& thread : threads_) thread->Join();
  threads_.clear();
  base::MutexLock lock(mu_);
  dropped_.Add(std::exchange(later_size_, 0) + std::exchange(size_, 0));
}

void Outbox::Push(NameIndex owner, Notice notice) {
  {
    base::MutexLock lock(mu_);
    Queue& queue = queues_[owner];
    if (!HasRoom(queue)) {
      dropped_.Increment();
      return;
    }
    queue.notices.push_back(notice);
    NoteQueued(queue);
  }
  work_->Set();
}

void Outbox::Committed(const Place& place, Version version) {
  Push(place.owner, {place, What::kCommitted, version});
}

void Outbox::Retired(const Place& place) { Push(place.owner, {place, What::kRetired}); }

void Outbox::Abandoned(const Place& place) { Push(place.owner, {place, What::kAbandoned}); }

void Outbox::Mirror(const KeyRef& ref, const Route& route) {
  if (core_ == nullptr) return;
  const ViewPtr view = core_->view();
  const auto ranks = view->RanksOf(ref.hash);
  const size_t copies = std::min<size_t>(ranks.size(), core_->options.route_topk);
  for (size_t rank = 1; rank < copies; ++rank) {
    ViewPtr old;  // Not freed under the lock.
    base::MutexLock lock(mu_);
    if (peers_view_ != view) {
      old = std::exchange(peers_view_, view);
      peers_.assign(view->nodes().size(), std::nullopt);
    }
    const std::optional<NameIndex> peer = PeerAt(ranks[rank]);
    if (!peer || *peer == kSelf) continue;
    Queue& queue = queues_[*peer];
    if (!HasRoom(queue)) {
      dropped_.Increment();
      continue;
    }
    KeyedRoute& keyed = queue.mirrors.emplace_back();
    keyed.ref = {ref.hash, ref.scope, {}};
    keyed.key = std::string(ref.key);
    keyed.route = route;
    NoteQueued(queue);
  }
  if (copies > 1) work_->Set();
}

bool Outbox::HasRoom(const Queue& queue) const {
  return size_ < kQueueMax && queue.notices.size() + queue.mirrors.size() < kPeerQueueMax;
}

std::optional<NameIndex> Outbox::PeerAt(routing::NodeIndex node) {
  std::optional<NameIndex>& peer = peers_[node];
  if (!peer) peer = core_->names.IndexOf(peers_view_->node(node).lease.id.ToString());
  return peer;
}

void Outbox::NoteQueued(Queue& queue) {
  ++size_;
  ++last_number_;
  if (queue.queued_since == 0) queue.queued_since = last_number_;
}

bool Outbox::IsUntried(uint64_t number) {
  base::MutexLock lock(mu_);
  return std::any_of(queues_.begin(), queues_.end(), [number](const auto& entry) {
    const Queue& queue = entry.second;
    return (queue.queued_since != 0 && queue.queued_since <= number) ||
           (queue.sending_since != 0 && queue.sending_since <= number);
  });
}

bool Outbox::Flush(uint64_t deadline_ms) {
  uint64_t last = 0;
  {
    base::MutexLock lock(mu_);
    last = last_number_;
  }
  while (IsUntried(last)) {
    if (runtime_.NowMs() >= deadline_ms || stop_.load()) return false;
    sent_->Clear();
    work_->Set();
    if (!IsUntried(last)) break;
    sent_->WaitUntil(std::min(deadline_ms, runtime_.NowMs() + 20));
  }
  return true;
}

void Outbox::Loop(Event& turn) {
  while (true) {
    AwaitTurn(turn);
    std::optional<Batch> batch;
    while (!stop_.load() && !(batch = Take())) {
      work_->WaitUntil(runtime_.NowMs() + kIdleWaitMs);
      if (stop_.load()) break;
      work_->Clear();
      runtime_.SleepMs(kCoalesceMs);
    }
    PassTurn();
    if (batch) Done(*batch, Send(*batch));
    if (stop_.load()) return;
  }
}

void Outbox::AwaitTurn(Event& turn) {
  {
    base::MutexLock lock(mu_);
    if (!std::exchange(watched_, true)) return;
    idle_.push_back(&turn);
  }
  while (!stop_.load() && !turn.WaitUntil(runtime_.NowMs() + kIdleWaitMs)) {
  }
  turn.Clear();
}

void Outbox::PassTurn() {
  Event* next = nullptr;
  {
    base::MutexLock lock(mu_);
    watched_ = !idle_.empty();
    if (watched_) {
      next = idle_.back();
      idle_.pop_back();
    }
  }
  if (next != nullptr) next->Set();
}

bool Outbox::IsDue(const Queue& queue, uint64_t now_ms) const {
  if (queue.busy) return false;
  const bool again = !queue.later.empty() && now_ms >= queue.later_ms;
  return again || !queue.notices.empty() || !queue.mirrors.empty();
}

std::optional<Outbox::Batch> Outbox::Take() {
  const uint64_t now_ms = runtime_.NowMs();
  Batch batch;
  base::MutexLock lock(mu_);
  auto found = queues_.upper_bound(last_);  // In turn.
  for (size_t i = 0; i < queues_.size(); ++i, ++found) {
    if (found == queues_.end()) found = queues_.begin();
    if (IsDue(found->second, now_ms)) break;
  }
  if (found == queues_.end() || !IsDue(found->second, now_ms)) return std::nullopt;
  last_ = batch.peer = found->first;
  Queue& queue = found->second;
  queue.busy = true;
  queue.sending_since = std::exchange(queue.queued_since, 0);
  size_ -= queue.notices.size() + queue.mirrors.size();
  if (now_ms >= queue.later_ms) {
    later_size_ -= queue.later.size();
    batch.notices.swap(queue.later);
  }
  batch.notices.insert(batch.notices.end(), queue.notices.begin(), queue.notices.end());
  queue.notices.clear();
  batch.mirrors.swap(queue.mirrors);
  return batch;
}

void Outbox::Done(const Batch& batch, std::span<const Notice> failed) {
  bool more = false;
  {
    base::MutexLock lock(mu_);
    const auto found = queues_.find(batch.peer);
    Queue& queue = found->second;
    queue.busy = false;
    queue.sending_since = 0;
    more = !queue.notices.empty() || !queue.mirrors.empty();
    for (const Notice& notice : failed) {
      if (notice.tries + 1 >= kTriesMax || later_size_ >= kQueueMax) {
        dropped_.Increment();
        continue;
      }
      if (queue.later.empty()) queue.later_ms = runtime_.NowMs() + kIdleWaitMs;
      queue.later.push_back(notice);
      ++queue.later.back().tries;
      ++later_size_;
    }
    if (!more && queue.later.empty()) queues_.erase(found);
  }
  if (more) work_->Set();  // Whoever watched passed it over.
  sent_->Set();
}

std::vector<Outbox::Notice> Outbox::Send(const Batch& batch) {
  obs::PhaseSpan span(runtime_, "control.replica_track");
  span.items(batch.notices.size() + batch.mirrors.size());
  const ViewPtr view = core_->view();
  const std::string name = core_->names.NameOf(batch.peer);
  const routing::NodeIndex index = view->FindName(name);
  if (index == routing::kNoNode) {
    dropped_.Add(batch.mirrors.size());  // Others have its ranks now.
    // It has just joined, or it lost its lease and may come back; or its space has gone with it.
    return IsSucceeded(*view, name) ? std::vector<Notice>() : batch.notices;
  }
  const routing::ViewNode& peer = view->node(index);
  // First what a successor of ours would not know. A peer that does not answer is left alone: each
  // message more would wait as long.
  bool heard = SendMirrors(peer, batch.mirrors);
  std::span<const Notice> left = batch.notices;
  while (heard && !left.empty()) {
    const std::span<const Notice> part = left.first(std::min(kBatchMax, left.size()));
    v1::NoticeRequest request;
    core_->peers.FillOrigin(false, request.mutable_origin());
    request.set_owner(name);
    for (const Notice& notice : part) {
      v1::Replica* place = nullptr;
      switch (notice.what) {
        case What::kCommitted:
          request.add_versions(notice.version);
          place = request.add_committed();
          break;
        case What::kRetired: place = request.add_retired(); break;
        case What::kAbandoned: place = request.add_abandoned(); break;
      }
      WritePlace(notice.place, core_->names, place);
    }
    const auto reply = core_->peers.Ask<v1::NoticeReply>(peer, MessageType::kNotice, request,
                                                         runtime_.NowMs() + kSendTimeoutMs);
    heard = reply.ok();
    if (heard) left = left.subspan(part.size());
  }
  return {left.begin(), left.end()};
}

// One message after the other: of two that name a key, the newer has to arrive last.
bool Outbox::SendMirrors(const routing::ViewNode& peer, std::span<const KeyedRoute> mirrors) {
  bool heard = true;
  while (heard && !mirrors.empty()) {
    v1::MirrorRequest request;
    core_->peers.FillOrigin(false, request.mutable_origin());
    ScopeColumn scopes(core_->scopes, request.mutable_scopes());
    size_t count = 0;
    for (uint64_t bytes = 0; count < mirrors.size() && !IsFull(count, bytes); ++count) {
      bytes += WriteKeyedRoute(mirrors[count], scopes, core_->names, request.add_routes());
    }
    const auto reply = core_->peers.Ask<v1::MirrorReply>(peer, MessageType::kMirror, request,
                                                         runtime_.NowMs() + kSendTimeoutMs);
    heard = reply.ok();
    if (heard) mirrors = mirrors.subspan(count);
  }
  dropped_.Add(mirrors.size());
  return heard;
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

#include "node/evictor.h"

#include <algorithm>
#include <map>

#include "node/authority.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kPollMs = 100;
constexpr uint64_t kDropTimeoutMs = 3'000;
constexpr uint64_t kSilentMs = 5'000;
constexpr uint64_t kPinnedWaitMs = 2;
// Evicting a little more than asked keeps the next writer from doing the same again.
constexpr uint64_t kSpareDivisor = 128;  // Of the capacity.
}  // namespace

Evictor::Evictor(Runtime& runtime, Metrics& metrics)
    : runtime_(runtime),
      evicted_(metrics.GetCounter("eviction_total", {{"result", "ok"}})),
      evicted_bytes_(metrics.GetCounter("eviction_bytes_total", {})),
      duration_(metrics.GetHistogram("eviction_duration_seconds", {{"result", "ok"}})),
      background_(metrics.GetCounter(
          "operation_total",
          {{"operation", "storage_owner_background_eviction"}, {"result", "ok"}})),
      work_(runtime.NewEvent()) {}

void Evictor::Start(Core& core) {
  core_ = &core;
  thread_ = runtime_.Spawn("mc-evict", [this] { Loop(); });
}

void Evictor::Stop() {
  stop_.store(true);
  work_->Set();
  if (thread_) thread_->Join();
  thread_.reset();
}

void Evictor::Loop() {
  while (!stop_.load()) {
    work_->WaitUntil(runtime_.NowMs() + kPollMs);
    work_->Clear();
    if (!stop_.load()) EvictToLowWatermark();
  }
}

// Of the node: a segment may be full while others have room, which is where values go then.
void Evictor::EvictToLowWatermark() {
  const auto [used, capacity] = core_->extents.Usage();
  const uint64_t high = capacity / 100 * core_->options.high_watermark_percent;
  const uint64_t low = capacity / 100 * core_->options.low_watermark_percent;
  if (used < high || capacity == 0) return;
  // A value that alone is above the high watermark would vanish right after its put: the newest
  // stays.
  const ExtentStore::VictimsWanted wanted{.newest = ExtentStore::Newest::kStays};
  uint64_t to_go = used - low;
  for (int round = 0; round < kRoundsMax && to_go > 0 && !stop_.load(); ++round) {
    bool would_block = false;
    const uint64_t freed = MakeRoom(to_go, wanted, true, UINT64_MAX, &would_block);
    if (freed == 0) break;
    if (round == 0) background_.Increment();
    to_go -= std::min(to_go, freed);
  }
}

uint64_t Evictor::RetireAll(const std::vector<ExtentPin>& victims) {
  uint64_t bytes = 0;
  for (const ExtentPin& victim : victims) {
    if (!core_->extents.Retire(*victim)) continue;
    evicted_.Increment();
    bytes += allocator::ExtentAllocator::RoundUp(victim->size());
  }
  evicted_bytes_.Add(bytes);
  return bytes;
}

uint64_t Evictor::EvictServed(std::vector<ExtentPin>* victims) {
  std::vector<ExtentPin> served;
  std::vector<ExtentPin> routed;
  for (ExtentPin& victim : *victims) {
    Version version = 0;
    const ItemCode code = DropReplica(*core_, victim->ref(), victim->place(), &version);
    const bool ours = code == kItemOk || code == CodeOf(ErrorCode::kNotFound);
    (ours ? served : routed).push_back(std::move(victim));
  }
  victims->swap(routed);
  return RetireAll(served);
}

bool Evictor::WasSilent(const NodeId& authority) const {
  base::MutexLock lock(mu_);
  const auto found = silent_until_ms_.find(authority);
  return found != silent_until_ms_.end() && runtime_.NowMs() < found->second;
}

void Evictor::NoteAnswer(const NodeId& authority, bool answered) {
  base::MutexLock lock(mu_);
  const uint64_t now_ms = runtime_.NowMs();
  std::erase_if(silent_until_ms_, [&](const auto& silent) { return silent.second <= now_ms; });
  if (!answered) silent_until_ms_[authority] = now_ms + kSilentMs;
}

uint64_t Evictor::EvictRouted(const std::vector<ExtentPin>& victims, uint64_t deadline_ms) {
  struct Batch {
    v1::CheckRequest request;
    std::unique_ptr<ScopeColumn> scopes;
    std::vector<ExtentPin> victims;
    uint64_t bytes = 0;
  };
  const ViewPtr view = core_->view();
  std::map<routing::NodeIndex, Batch> batches;
  for (const ExtentPin& victim : victims) {
    const auto ranks = view->RanksOf(victim->ref().hash);
    const bool reachable =
        !ranks.empty() &&
        view->node(ranks[0]).lease.id.ToString() != core_->membership.self_name() &&
        !WasSilent(view->node(ranks[0]).lease.id);
    if (!reachable) {
      core_->extents.GiveBack(*victim);
      continue;
    }
    Batch& batch = batches[ranks[0]];
    if (IsFull(batch.victims.size(), batch.bytes)) {
      core_->extents.GiveBack(*victim);
      continue;
    }
    if (!batch.scopes) {
      batch.scopes = std::make_unique<ScopeColumn>(core_->scopes, batch.request.mutable_scopes());
      core_->peers.FillOrigin(false, batch.request.mutable_origin());
      batch.request.set_drop(true);
    }
    KeyedRoute keyed;
    keyed.ref = victim->ref();
    keyed.key = std::string(keyed.ref.key);
    keyed.route.replicas = {victim->place()};
    batch.bytes += WriteKeyedRoute(keyed, *batch.scopes, core_->names, batch.request.add_extents());
    batch.victims.push_back(victim);
  }
  std::vector<const routing::ViewNode*> peers;
  std::vector<v1::CheckRequest> requests;
  for (auto& [index, batch] : batches) {
    peers.push_back(&view->node(index));
    requests.push_back(std::move(batch.request));
  }
  if (peers.empty()) return 0;
  auto replies = core_->peers.AskMany<v1::CheckReply, v1::CheckRequest>(
      peers, MessageType::kCheck, requests,
      std::min(deadline_ms, runtime_.NowMs() + kDropTimeoutMs));
  std::vector<ExtentPin> dropped;
  size_t reply_index = 0;
  for (auto& [index, batch] : batches) {
    const Result<v1::CheckReply>& reply = replies[reply_index++];
    NoteAnswer(view->node(index).lease.id, reply.ok());
    for (size_t i = 0; i < batch.victims.size(); ++i) {
      const bool answered = reply.ok() && static_cast<int>(i) < reply->codes_size();
      const ItemCode code = answered ? reply->codes(static_cast<int>(i)) : kItemRetryLater;
      const bool gone = code == kItemOk || code == CodeOf(ErrorCode::kNotFound);
      if (gone) {
        dropped.push_back(batch.victims[i]);
      } else {
        core_->extents.GiveBack(*batch.victims[i]);
      }
    }
  }
  return RetireAll(dropped);
}

uint64_t Evictor::MakeRoom(uint64_t bytes, const ExtentStore::VictimsWanted& wanted, bool may_block,
                           uint64_t deadline_ms, bool* would_block) {
  obs::PhaseSpan span(runtime_, "data.eviction");
  span.bytes_out(bytes);
  std::vector<ExtentPin> victims = core_->extents.TakeVictims(bytes, wanted);
  span.items(victims.size());
  if (victims.empty()) return 0;
  const uint64_t started_ns = runtime_.NowNs();
  uint64_t freed = EvictServed(&victims);
  if (!victims.empty() && may_block) {
    freed += EvictRouted(victims, deadline_ms);
  } else if (!victims.empty()) {
    for (const ExtentPin& victim : victims) core_->extents.GiveBack(*victim);
    *would_block = true;
  }
  duration_.ObserveNs(runtime_.NowNs() - started_ns);
  return freed;
}

ExtentPin Evictor::Reserve(const ReserveRequest& request, bool may_block, uint64_t deadline_ms,
                           bool* would_block) {
  *would_block = false;
  if (ExtentPin pin = core_->extents.Reserve(request)) {
    const auto [used, capacity] = core_->extents.Usage();
    if (used >= capacity / 100 * core_->options.high_watermark_percent) work_->Set();
    return pin;
  }
  const uint64_t largest = core_->extents.CapacityOf(request.segment);
  const uint64_t need = allocator::ExtentAllocator::RoundUp(request.size);
  if (need > largest) return {};
  const uint64_t until_ms = deadline_ms != 0 ? deadline_ms : UINT64_MAX;
  for (int round = 0; round < kRoundsMax; ++round) {
    const uint64_t freed = MakeRoom(need + largest / kSpareDivisor, {request.segment, need},
                                    may_block, until_ms, would_block);
    if (ExtentPin pin = core_->extents.Reserve(request)) {
      *would_block = false;
      return pin;
    }
    if (freed > 0) continue;
    // Everything is pinned, being written or with other authorities. Pins are short.
    if (!may_block) {
      *would_block = true;
      return {};
    }
    if (runtime_.NowMs() >= deadline_ms || stop_.load()) return {};
    runtime_.SleepMs(kPinnedWaitMs);
  }
  return {};
}

}  // namespace mooncake::node

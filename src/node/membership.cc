#include "node/membership.h"

#include <fmt/format.h>

#include <algorithm>

#include "obs/log.h"
#include "obs/phase_span.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kBeatRetryMs = 500;
constexpr uint64_t kBeatMinMs = 200;  // However short the lease: the service is everybody's.
// Whoever hears that a service came back empty registers again, which is everybody at once.
constexpr uint64_t kBeatSpreadMs = 500;
constexpr uint64_t kAskAgainMs = 50;
constexpr uint64_t kLookWaitMs = 300;
constexpr uint64_t kLookEveryMs = 50;  // A cluster may well lack what its requests go on to need.
constexpr uint64_t kLookStepMs = 10;

}  // namespace

Membership::Membership(const MembershipOptions& options, Runtime& runtime, MetadataStore& metadata,
                       Metrics& metrics)
    : options_(options),
      lease_ttl_ms_(options.lease_ttl_ms),
      runtime_(runtime),
      metadata_(metadata),
      metrics_(metrics),
      view_(routing::EmptyView()),
      beat_(runtime.NewEvent()),
      refresh_(runtime.NewEvent()),
      fetched_(runtime.NewEvent()),
      tick_(runtime.NewEvent()) {}

Membership::~Membership() { Stop(); }

NodeId Membership::self() const {
  base::MutexLock lock(mu_);
  return record_.id;
}

LeaseRecord Membership::record() const {
  base::MutexLock lock(mu_);
  return record_;
}

void Membership::Start(std::function<void(const ViewPtr&, const ViewPtr&)> on_view,
                       std::function<void(LeaseRecord&)> freshen) {
  on_view_ = std::move(on_view);
  freshen_ = std::move(freshen);
  NoteHeartbeat(Ok());  // The lease is new.
  on_view_(routing::EmptyView(), view());
  heartbeat_thread_ = runtime_.Spawn("mc-heartbeat", [this] { HeartbeatLoop(); });
  refresh_thread_ = runtime_.Spawn("mc-view", [this] { RefreshLoop(); });
  last_tick_ms_.store(runtime_.NowMs());
  tick_thread_ = runtime_.Spawn("mc-tick", [this] { TickLoop(); });
}

void Membership::Stop() {
  if (!stop_.exchange(true)) {
    beat_->Set();
    refresh_->Set();
    tick_->Set();
  }
  if (heartbeat_thread_) heartbeat_thread_->Join();
  if (refresh_thread_) refresh_thread_->Join();
  if (tick_thread_) tick_thread_->Join();
  heartbeat_thread_.reset();
  refresh_thread_.reset();
  tick_thread_.reset();
}

// Whether the record has changed, in what others act on, since `sent` was. That may have reached
// the service after the renewal that told of the change.
bool Membership::IsOutdated(LeaseRecord sent) const {
  base::MutexLock lock(mu_);
  if (sent.segments.size() != record_.segments.size()) return true;
  for (size_t i = 0; i < sent.segments.size(); ++i) {
    sent.segments[i].used_bytes = record_.segments[i].used_bytes;
  }
  return !(sent == record_);
}

Result<uint64_t> Membership::Leave() {
  Stop();
  if (self_name_.empty()) return uint64_t{0};
  if (Status status = metadata_.Release(self(), instance_); !status) {
    obs::LogRateLimited(obs::LogLevel::kWarning, "membership.release",
                        "lease not released, it will lapse: " + status.error().ToString());
    return std::move(status).error();
  }
  return metadata_.Poll();
}

Status Membership::Renew() {
  MC_RETURN_IF_ERROR(RaiseEraIfAway());
  LeaseRecord record;
  {
    base::MutexLock lock(mu_);
    if (freshen_) freshen_(record_);
    record = record_;
  }
  const uint64_t asked_ms = runtime_.NowMs();
  auto renewed = metadata_.Renew(record, lease_ttl_ms());
  if (renewed.ok() || renewed.code() == ErrorCode::kStaleEpoch) superseded_.store(!renewed.ok());
  service_was_away_.store(renewed.code() == ErrorCode::kMetadata);
  if (IsOutdated(record)) RenewSoon();
  if (!renewed) return std::move(renewed).error();
  lease_confirmed_ms_.store(asked_ms);
  if (renewed->recreated) {
    RaiseEra(renewed->revision);
    RestorePolicy();
  }
  if (renewed->recreated || renewed->was_suspect) {
    lease_was_lost_.store(true);
    ForgetSuspicions();
    ReapplySoon();
  } else if (renewed->revision > view()->revision()) {
    RefreshSoon();
  }
  return Ok();
}

Status Membership::HeartbeatNow(std::optional<uint64_t> ttl_ms) {
  if (ttl_ms) lease_ttl_ms_.store(std::max<uint64_t>(1, *ttl_ms));
  Status status = Renew();
  if (!status.ok()) {
    RenewSoon();  // Also as it may still reach the service, after a newer one.
  } else if (ttl_ms) {
    beat_->Set();  // The interval follows from it.
  }
  return status;
}

// As configured, or a third of a lease that is no longer than that.
uint64_t Membership::HeartbeatIntervalMs() const {
  const uint64_t ttl_ms = lease_ttl_ms();
  const uint64_t interval_ms = options_.heartbeat_interval_ms;
  if (interval_ms < ttl_ms) return interval_ms;
  return std::max({ttl_ms / 3, std::min(interval_ms, kBeatMinMs), uint64_t{1}});
}

Status Membership::Update(const std::function<void(LeaseRecord&)>& change, bool or_undo) {
  LeaseRecord before;
  NodeState changed = NodeState::kOffline;
  {
    base::MutexLock lock(mu_);
    before = record_;
    change(record_);
    if (record_.state == NodeState::kActive) record_.beside = 0;
    changed = record_.state;
    state_.store(changed);
  }
  Status status = Renew();
  if (status.ok()) return status;
  if (or_undo) {
    base::MutexLock lock(mu_);
    if (record_.state == changed) {  // Nobody else has changed it meanwhile.
      record_.state = before.state;
      record_.beside = before.beside;
      state_.store(before.state);
    }
  }
  RenewSoon();  // The heartbeat thread goes on trying.
  return status;
}

void Membership::NoteHeartbeat(const Status& status) {
  if (status.ok()) {
    if (beat_failures_ > 0) {
      obs::LogInfo(fmt::format("heartbeat recovered stable_id={} recovered_after_failures={}",
                               self().stable_id, beat_failures_));
    }
    beat_failures_ = 0;
    metrics_.GetGauge("heartbeat_last_success_ms", {{"runtime", self_name_}})
        .Set(static_cast<double>(runtime_.WallMs()));
  } else {
    ++beat_failures_;
    obs::LogRateLimited(obs::LogLevel::kWarning, "heartbeat.failed",
                        fmt::format("heartbeat failed stable_id={} consecutive_failures={} "
                                    "error={}",
                                    self().stable_id, beat_failures_, status.error().ToString()));
  }
  metrics_.GetGauge("heartbeat_consecutive_failures", {{"runtime", self_name_}})
      .Set(beat_failures_);
}

void Membership::RenewSoon() {
  renew_soon_.store(true);
  beat_->Set();
}

void Membership::HeartbeatLoop() {
  // Spread over the interval, so that nodes started together do not beat together.
  uint64_t wait_ms = 1 + runtime_.Random() % std::max<uint64_t>(options_.heartbeat_interval_ms, 1);
  bool well = true;  // The last one here succeeded.
  while (!stop_.load()) {
    const bool woken = beat_->WaitUntil(runtime_.NowMs() + wait_ms);
    beat_->Clear();
    if (stop_.load()) return;
    if (woken && !renew_soon_.exchange(false)) {
      if (well) wait_ms = HeartbeatIntervalMs();
      continue;
    }
    if (woken) beat_->WaitUntil(runtime_.NowMs() + runtime_.Random() % kBeatSpreadMs);
    if (stop_.load()) return;
    const Status status = Renew();
    NoteHeartbeat(status);
    well = status.ok();
    wait_ms = status.ok() ? HeartbeatIntervalMs() : kBeatRetryMs + runtime_.Random() % kBeatRetryMs;
  }
}

void Membership::RefreshLoop() {
  while (!stop_.load()) {
    const uint64_t jitter = runtime_.Random() % (options_.poll_interval_ms / 8 + 1);
    refresh_->WaitUntil(runtime_.NowMs() + options_.poll_interval_ms - jitter);
    refresh_->Clear();
    if (stop_.load()) return;
    RefreshOnce();
  }
}

bool Membership::NotePoll(uint64_t asked_ms, bool ok) {
  if (!ok) {
    if (outage_since_ms_ == 0) outage_since_ms_ = asked_ms;
    return false;
  }
  polled_ms_.store(asked_ms);
  const uint64_t since_ms = std::exchange(outage_since_ms_, 0);
  const bool was_long = since_ms != 0 && asked_ms > since_ms + lease_ttl_ms() / 3;
  if (was_long) outage_ended_ms_ = runtime_.NowMs();
  return was_long;
}

void Membership::RefreshOnce() {
  obs::PhaseSpan span(runtime_, "control.membership_refresh");
  const uint64_t started = fetches_started_.fetch_add(1) + 1;
  const uint64_t started_ns = runtime_.NowNs();
  const uint64_t freezes = freezes_.load();
  ReportSuspicions();
  const bool due = reapply_at_ms_ != 0 && runtime_.NowMs() >= reapply_at_ms_;
  const bool reapply = reapply_.exchange(false) || due;
  const uint64_t asked_ms = runtime_.NowMs();
  auto revision = metadata_.Poll();
  if (NotePoll(asked_ms, revision.ok())) RaiseEra(*revision);
  Status status = Ok();
  if (!revision) {
    status = std::move(revision).error();
  } else if (*revision != fetched_revision_) {
    status = FetchView();
  } else if (reapply) {
    Install(view()->revision());
  }
  if (reapply && !status) reapply_.store(true);  // At the next poll.
  const Labels labels{{"result", status.ok() ? "ok" : "error"}};
  metrics_.GetCounter("membership_refresh_total", labels).Increment();
  metrics_.GetHistogram("membership_refresh_duration_seconds", labels)
      .ObserveNs(runtime_.NowNs() - started_ns);
  if (status.ok()) {
    DropUnconfirmed();
    JoinEra();
  } else {
    obs::LogRateLimited(obs::LogLevel::kWarning, "membership.refresh",
                        "membership not refreshed: " + status.error().ToString());
  }
  // Also when the service did not answer: then nothing can have moved since it went away. But
  // what was asked before this process stood still says nothing about now.
  thawed_.store(freezes);
  fetches_done_.store(started);
  fetched_->Set();
}

Status Membership::FetchView() {
  const uint64_t since = members_.empty() ? 0 : fetched_revision_;
  MC_TRY(MembershipChanges changes, metadata_.ReadChanges(since));
  const bool in_force = changes.full && since > 0;  // A view that a whole list is to replace.
  const NodeId self = this->self();
  const auto own = std::find_if(changes.leases.begin(), changes.leases.end(),
                                [&](const LeaseRecord& lease) { return lease.id == self; });
  const bool known = own != changes.leases.end();
  if (in_force && !known) RenewSoon();
  if (since > 0 && known && (in_force || MayHaveLost(*own))) lease_was_lost_.store(true);
  if (in_force && changes.leases.empty()) {
    return MetadataError("the metadata service lost its data; registering again");
  }
  MC_RETURN_IF_ERROR(FetchTenantPolicies(in_force));
  std::map<NodeId, LeaseRecord> previous;
  if (changes.full) previous.swap(members_);
  for (LeaseRecord& lease : changes.leases) {
    unconfirmed_.erase(lease.id);
    members_.insert_or_assign(lease.id, std::move(lease));
  }
  const uint64_t now_ms = runtime_.NowMs();
  // A service that was away for long lets every lease lapse: nobody could renew.
  const bool lapsed = outage_ended_ms_ != 0 && now_ms < outage_ended_ms_ + lease_ttl_ms();
  for (const NodeId& id : changes.gone) {
    if (id == self) RenewSoon();
    if (lapsed && members_.contains(id)) {
      unconfirmed_.try_emplace(id, now_ms + lease_ttl_ms());
      continue;
    }
    if (id == self) lease_was_lost_.store(true);  // Before a view is applied that leaves us out.
    unconfirmed_.erase(id);
    members_.erase(id);
  }
  if (changes.full && !previous.empty()) KeepUnconfirmed(previous);
  fetched_revision_ = changes.revision;
  // A service without memory starts low; views and the terms of slots never go back.
  Install(std::max(changes.revision, view()->revision()));
  return Ok();
}

// By a member that is more than its standby.
bool Membership::IsSucceeded(const NodeId& id) const {
  for (auto next = members_.upper_bound(id);
       next != members_.end() && next->first.stable_id == id.stable_id; ++next) {
    if (next->second.beside == 0 && next->second.state != NodeState::kStandby) return true;
  }
  return false;
}

// A service that came back empty must not empty the cluster: a live node recreates its lease
// with its next heartbeat, and until one lease has passed it stays in the view.
void Membership::KeepUnconfirmed(const std::map<NodeId, LeaseRecord>& previous) {
  const uint64_t until_ms = runtime_.NowMs() + lease_ttl_ms();
  for (const auto& [id, lease] : previous) {
    if (members_.contains(id)) continue;
    if (IsSucceeded(id)) continue;
    members_.emplace(id, lease);
    unconfirmed_.try_emplace(id, until_ms);
    if (id == self()) RenewSoon();
  }
}

// Of one that the service does not know it cannot tell others the suspicion. That nobody listens at
// its address each of them sees for itself.
void Membership::DropUnconfirmed() {
  if (unconfirmed_.empty()) return;
  const uint64_t now_ms = runtime_.NowMs();
  const NodeId self = this->self();
  bool marked = false;
  for (const auto& [id, until_ms] : unconfirmed_) {
    const auto member = members_.find(id);
    if (id == self || member == members_.end() || member->second.suspect || !KnownGone(id))
      continue;
    member->second.suspect = marked = true;
  }
  const size_t dropped = std::erase_if(unconfirmed_, [&](const auto& entry) {
    if (now_ms < entry.second || entry.first == self) return false;
    members_.erase(entry.first);
    return true;
  });
  if (dropped > 0 || marked) Install(view()->revision());
}

void Membership::Install(uint64_t revision) {
  std::vector<LeaseRecord> leases;
  leases.reserve(members_.size());
  for (const auto& [id, lease] : members_) leases.push_back(lease);
  const ViewPtr before = view();
  const ViewPtr after = builder_->Build(revision, std::move(leases));
  if (on_view_) on_view_(before, after);
  view_.store(after, std::memory_order_release);
  NoteAbsences(*after);
  base::MutexLock lock(mu_);
  std::erase_if(suspicions_, [&](const auto& entry) {
    const routing::NodeIndex index = after->Find(entry.first);
    if (index == routing::kNoNode) return true;
    // Its own heartbeat has ended what we reported. It has its slots back, so it must be called.
    return entry.second.reported && !after->node(index).lease.suspect;
  });
  suspect_count_.store(static_cast<int>(suspicions_.size()));
}

bool Membership::RefreshTo(uint64_t revision, uint64_t deadline_ms) {
  const uint64_t fetch = fetches_started_.load() + 1;
  uint64_t ask_at_ms = 0;  // Not as fast as the service answers: the revision may be nonsense.
  while (!stop_.load()) {
    if (revision > 0 ? view()->revision() >= revision : fetches_done_.load() >= fetch) return true;
    const uint64_t now_ms = runtime_.NowMs();
    if (now_ms >= deadline_ms || runtime_.Interrupted()) return false;
    fetched_->Clear();
    if (now_ms >= ask_at_ms) {
      ask_at_ms = now_ms + kAskAgainMs;
      refresh_->Set();
    }
    fetched_->WaitUntil(std::min(deadline_ms, ask_at_ms));
  }
  return false;
}

void Membership::LookAgain(uint64_t deadline_ms) {
  const uint64_t now_ms = runtime_.NowMs();
  Look look;
  {
    base::MutexLock lock(mu_);
    const bool answered = fetches_done_.load() >= look_.fetch;
    const uint64_t pause_ms = answered ? kLookEveryMs : kLookWaitMs + options_.poll_interval_ms;
    if (look_.fetch == 0 || now_ms >= look_.asked_ms + pause_ms) {
      look_ = {now_ms, fetches_started_.load() + 1};
      refresh_->Set();
    }
    look = look_;
  }
  const uint64_t until_ms = std::min(deadline_ms, look.asked_ms + kLookWaitMs);
  while (!stop_.load() && !runtime_.Interrupted()) {
    fetched_->Clear();
    const uint64_t waited_ms = runtime_.NowMs();
    if (fetches_done_.load() >= look.fetch || waited_ms >= until_ms) return;
    fetched_->WaitUntil(std::min(until_ms, waited_ms + kLookStepMs));
  }
}

void Membership::RefreshSoon() { refresh_->Set(); }

void Membership::ReapplySoon() {
  reapply_.store(true);
  refresh_->Set();
}

uint64_t Membership::LeaseAgeMs() const {
  const uint64_t confirmed_ms = lease_confirmed_ms_.load();
  return std::max(runtime_.NowMs(), confirmed_ms) - confirmed_ms;
}

}  // namespace mooncake::node

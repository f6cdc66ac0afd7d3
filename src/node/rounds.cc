#include "node/rounds.h"

#include <algorithm>
#include <map>
#include <utility>

#include "node/wire.h"

namespace mooncake::node {

namespace {
constexpr uint64_t kWaitMinMs = 1;
constexpr uint64_t kWaitMaxMs = 25;
constexpr uint64_t kRefreshWaitMs = 2'000;

// The view to start with: not one from before this process stood still.
ViewPtr TakeView(Core& core, uint64_t deadline_ms) {
  if (core.membership.Frozen()) {
    core.membership.AwaitThaw(std::min(deadline_ms, core.runtime.NowMs() + kRefreshWaitMs));
  }
  return core.view();
}
}  // namespace

Rounds::Rounds(Core& core, uint64_t deadline_ms)
    : core_(core),
      deadline_ms_(deadline_ms),
      view_(TakeView(core, deadline_ms)),
      last_error_(TransportError("no authority answered")) {}

std::vector<AuthorityGroup> Rounds::Group(std::span<const KeyRef> refs,
                                          std::span<const uint32_t> items,
                                          std::span<const uint64_t> sizes,
                                          std::vector<uint32_t>* again) {
  struct Open {  // The group of a node and a scope that still takes items.
    size_t group = 0;
    uint64_t payload_bytes = 0;
    uint64_t key_bytes = 0;
  };
  std::map<std::pair<routing::NodeIndex, ScopeIndex>, Open> open;
  std::vector<AuthorityGroup> groups;
  const routing::NodeIndex self = view_->FindName(core_.membership.self_name());
  for (uint32_t item : items) {
    const auto ranks = view_->RanksOf(refs[item].hash);
    if (ranks.empty() || ranks[0] == self) {
      // Nobody, or us: then our table said moments ago that it is not ready.
      stale_ = true;
      ranks.empty() ? NoteNobody() : NoteOthers();
      again->push_back(item);
      continue;
    }
    const uint64_t size = sizes.empty() ? 0 : sizes[item];
    const uint64_t key_size = refs[item].key.size();
    auto [found, fresh] = open.try_emplace({ranks[0], refs[item].scope});
    Open& last = found->second;
    const bool full = !fresh && (groups[last.group].items.size() >= kItemsPerMessageMax ||
                                 last.payload_bytes + size > kPayloadPerMessageMax ||
                                 last.key_bytes + key_size > kKeyBytesPerMessageMax);
    if (fresh || full) {
      last = {groups.size(), 0, 0};
      groups.push_back({ranks[0], {}});
    }
    groups[last.group].items.push_back(item);
    last.payload_bytes += size;
    last.key_bytes += key_size;
  }
  return groups;
}

void Rounds::NoteCode(ItemCode code, uint64_t revision) {
  others_ = true;
  if (code == kItemWrongAuthority) {
    stale_ = true;
    wanted_revision_ = std::max(wanted_revision_, revision);
    last_error_ = TransportError("the key's authority is changing");
  } else {
    last_error_ = TransportError("the key's slot is being taken over");
  }
}

void Rounds::NotePeerFailed(const NodeId& peer, const Error& error) {
  peer_failed_ = true;
  if (first_failure_ms_ == 0) first_failure_ms_ = core_.runtime.NowMs();
  suspected_for_ms_ = std::max(suspected_for_ms_, core_.membership.SuspectedForMs(peer));
  last_error_ = error;
}

void Rounds::FillChange(AuthorityGroup& group, v1::Origin* origin) {
  core_.peers.FillOrigin(true, origin);
  if (!unanswered_.empty()) {
    const auto found = unanswered_.find({view_->node(group.node).lease.id, group.items});
    if (found != unanswered_.end()) {
      origin->set_sequence(found->second);
      unanswered_.erase(found);
    }
  }
  group.sequence = origin->sequence();
}

bool Rounds::Answered(const AuthorityGroup& group, const Error* error, bool whole,
                      std::vector<uint32_t>* again) {
  if (error == nullptr && whole) return true;
  const NodeId& peer = view_->node(group.node).lease.id;
  if (error != nullptr) {
    NotePeerFailed(peer, *error);
  } else {
    last_error_ = TransportError("node " + peer.ToString() + " sent a malformed reply");
  }
  if (group.sequence != 0) unanswered_[{peer, group.items}] = group.sequence;
  again->insert(again->end(), group.items.begin(), group.items.end());
  return false;
}

void Rounds::NoteAbsence(uint64_t for_ms, const char* what) {
  peer_failed_ = true;
  absent_for_ms_ = std::max(absent_for_ms_, for_ms);
  if (first_failure_ms_ == 0) first_failure_ms_ = core_.runtime.NowMs();
  last_error_ = TransportError(what);
  last_error_.reason = ErrorReason::kOwnerDead;
}

void Rounds::NoteNobody() {
  NoteAbsence(core_.membership.NobodyRoutesForMs(),
              "the cluster has no node that keeps routes, or suspect ones only");
}

void Rounds::NoteNoStorage() {
  NoteAbsence(core_.membership.NobodyStoresForMs(), "all storage nodes are suspect");
}

// The slots of a peer that failed move once the metadata service has heard of it.
bool Rounds::TakeoverIsLate(uint64_t now_ms) const {
  const uint64_t limit = core_.options.takeover_wait_ms;
  if (suspected_for_ms_ > limit || now_ms - first_failure_ms_ > limit) return true;
  // Nobody is left to take anything over, and that has been waited for already.
  return absent_for_ms_ > limit;
}

bool Rounds::FindsNewView() {
  if (std::exchange(looked_, true)) return false;
  core_.membership.LookAgain(deadline_ms_);
  return core_.view()->revision() != view_->revision();
}

bool Rounds::Again() {
  const uint64_t now_ms = core_.runtime.NowMs();
  if (++round_ > kRoundsMax || now_ms >= deadline_ms_ || core_.runtime.Interrupted()) return false;
  if (!peer_failed_) {
    first_failure_ms_ = 0;  // All have answered since: the next failure is another one.
  } else if (!others_ && TakeoverIsLate(now_ms)) {
    // Where there was nobody, the first one may have joined a moment ago.
    if (absent_for_ms_ == 0 || !FindsNewView()) return false;
    stale_ = peer_failed_ = false;
    first_failure_ms_ = 0;
  }
  const uint64_t wait_ms =
      std::min({kWaitMinMs << std::min(round_, 5), kWaitMaxMs, deadline_ms_ - now_ms});
  const uint64_t before = view_->revision();
  if (wanted_revision_ > before) {
    core_.membership.RefreshTo(wanted_revision_, std::min(deadline_ms_, now_ms + kRefreshWaitMs));
  } else if (std::exchange(unknown_owner_, false)) {
    core_.membership.RefreshTo(0, std::min(deadline_ms_, now_ms + kRefreshWaitMs));
  } else {
    if (stale_ || peer_failed_) core_.membership.RefreshSoon();
    core_.runtime.SleepMs(wait_ms);
  }
  view_ = core_.view();
  stale_ = false;
  others_ = false;
  peer_failed_ = false;
  suspected_for_ms_ = 0;
  absent_for_ms_ = 0;
  return true;
}

}  // namespace mooncake::node

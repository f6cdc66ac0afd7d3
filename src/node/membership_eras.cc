// The part of Membership that agrees on the era of the cluster (docs/adr/0019-eras.md).
#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "node/membership.h"

namespace mooncake::node {

namespace {

// That others need, however short the lease, to see a node that is back and to ask it.
constexpr uint64_t kEraMinMs = 5'000;
constexpr const char* kEraDocument = "cluster/era";

// 0: there is none, or nonsense.
uint64_t EraIn(const MetadataStore::Document& document) {
  const char* const end = document.text.data() + document.text.size();
  uint64_t era = 0;
  const auto [next, error] = std::from_chars(document.text.data(), end, era);
  return error == std::errc() && next == end ? era : 0;
}

}  // namespace

// A document says by which revision the cluster began. Where there is none, or nobody else, this is
// where it begins: for the first time, or again, as the service has lost all that there were.
// Nobody else is whoever has no era yet: it knows as little as we do, and may have died meanwhile.
Status Membership::FetchFirstView() {
  // Before the members: of those that write it after this look, some may be in no era that we see.
  const auto before = metadata_.GetDocument(kEraDocument);
  MC_RETURN_IF_ERROR(FetchView());
  const uint64_t others = NewestEra();
  const auto kept = others == 0 ? before : metadata_.GetDocument(kEraDocument);
  const uint64_t era = kept.ok() ? EraIn(*kept) : 0;
  SetEra(others == 0 || era == 0 ? BeginEra(kept) : std::max(era, others));
  return Ok();
}

// The own revision, unless somebody else has written another one over `kept`. Too new an era costs
// time, too old a one values.
uint64_t Membership::BeginEra(const Result<MetadataStore::Document>& kept) {
  const uint64_t revision = view()->revision();
  if (!kept.ok()) return revision;
  // In the lease first: whoever finds it written down has to see that somebody is of this era.
  SetEra(revision);
  (void)Renew();
  const auto written = metadata_.PutDocument(kEraDocument, std::to_string(revision), kept->version);
  if (written.ok() || written.code() != ErrorCode::kConflict) return revision;
  const auto theirs = metadata_.GetDocument(kEraDocument);
  const uint64_t era = theirs.ok() ? EraIn(*theirs) : 0;
  return era != 0 ? era : revision;
}

void Membership::SetEra(uint64_t era) {
  base::MutexLock lock(mu_);
  record_.era = era;
}

// The service has lost members, perhaps all: who joins from now on does not know what they have.
void Membership::RaiseEra(uint64_t revision) {
  const auto kept = metadata_.GetDocument(kEraDocument);
  if (!kept.ok() || EraIn(*kept) > era()) return;  // Somebody was faster.
  (void)metadata_.PutDocument(kEraDocument, std::to_string(revision), kept->version);
}

// A service that was away for so long may have ended leases. It is said before ours is seen there
// again: who joins must not take it for one of a cluster that never lost anybody.
Status Membership::RaiseEraIfAway() {
  if (!service_was_away_.load() || LeaseAgeMs() <= lease_ttl_ms() / 2) return Ok();
  MC_TRY(const uint64_t revision, metadata_.Poll());
  RaiseEra(revision);
  return Ok();
}

uint64_t Membership::NewestEra() const {
  uint64_t newest = 0;
  for (const auto& [id, lease] : members_) newest = std::max(newest, lease.era);
  return newest;
}

// A node from before the cluster that others know of has been asked by all of them for what it has
// once they have seen it for a while. From then on it is one of theirs. Those of a newer era than
// that are others: they have yet to ask.
void Membership::JoinEra() {
  const uint64_t newest = NewestEra();
  const uint64_t now_ms = runtime_.NowMs();
  if (newest <= era()) {
    other_era_ = 0;
    return;
  }
  if (std::exchange(other_era_, newest) != newest) {
    // Not all at once: each has to tell the service, and everybody hears of it.
    join_era_ms_ = now_ms + EraWaitMs() + runtime_.Random() % EraWaitMs();
  }
  if (now_ms < join_era_ms_) return;
  (void)Update([&](LeaseRecord& record) { record.era = newest; });  // The heartbeats go on trying.
}

uint64_t Membership::EraWaitMs() const { return std::max(lease_ttl_ms(), kEraMinMs); }

// Whether the own lease, which is not what it was at the last look, may have been lost and
// recreated, or suspected and cleared, since. (Or it is we who changed it.) The heartbeat that did
// it may not have returned yet. That it is of another era now, and else as it was, is our doing.
bool Membership::MayHaveLost(const LeaseRecord& lease) const {
  const auto last = members_.find(lease.id);
  if (last == members_.end() || last->second.era == lease.era) return true;
  LeaseRecord expected = last->second;
  expected.era = lease.era;
  return !(expected == lease);
}

uint64_t Membership::era() const {
  base::MutexLock lock(mu_);
  return record_.era;
}

}  // namespace mooncake::node

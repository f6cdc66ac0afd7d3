// The part of Membership that agrees on the era of the cluster (docs/adr/0019-eras.md).
#include <algorithm>
#include <charconv>
#include <string>

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
void Membership::ChooseEra() {
  const uint64_t revision = view()->revision();
  const auto kept = metadata_.GetDocument(kEraDocument);
  uint64_t era = kept.ok() ? EraIn(*kept) : 0;
  if (kept.ok() && (era == 0 || members_.size() == 1)) {
    if (metadata_.PutDocument(kEraDocument, std::to_string(revision), kept->version).ok()) {
      era = revision;
    } else if (const auto theirs = metadata_.GetDocument(kEraDocument); theirs.ok()) {
      era = EraIn(*theirs);
    }
  }
  base::MutexLock lock(mu_);
  record_.era = era != 0 ? era : revision;  // Too new an era costs time, too old a one values.
}

// The service has lost members, perhaps all: who joins from now on does not know what they have.
void Membership::RaiseEra(uint64_t revision) {
  const auto kept = metadata_.GetDocument(kEraDocument);
  if (!kept.ok() || EraIn(*kept) > era()) return;  // Somebody was faster.
  (void)metadata_.PutDocument(kEraDocument, std::to_string(revision), kept->version);
}

uint64_t Membership::NewestEra() const {
  uint64_t newest = 0;
  for (const auto& [id, lease] : members_) newest = std::max(newest, lease.era);
  return newest;
}

// A node from before the cluster that others know of has been asked by all of them for what it has
// once they have seen it for a while. From then on it is one of theirs.
void Membership::JoinEra() {
  const uint64_t newest = NewestEra();
  const uint64_t now_ms = runtime_.NowMs();
  if (newest <= era()) {
    other_era_since_ms_ = 0;
    return;
  }
  if (other_era_since_ms_ == 0) other_era_since_ms_ = now_ms;
  if (now_ms < other_era_since_ms_ + std::max(lease_ttl_ms(), kEraMinMs)) return;
  other_era_since_ms_ = 0;
  (void)Update([&](LeaseRecord& record) { record.era = newest; });  // The heartbeats go on trying.
}

uint64_t Membership::era() const {
  base::MutexLock lock(mu_);
  return record_.era;
}

}  // namespace mooncake::node

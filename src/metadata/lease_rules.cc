#include "metadata/lease_rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace mooncake::metadata {

Error SupersededBy(const NodeId& id, uint64_t epoch) {
  return StaleEpoch(fmt::format("{} was superseded by {}:{}", id.ToString(), id.stable_id, epoch));
}

Error TakenByAnother(const NodeId& id) {
  return StaleEpoch(fmt::format("{} is the name of another process by now", id.ToString()));
}

Error HeldBy(const NodeId& holder, const EncodedLease& record) {
  Result<LeaseRecord> lease = DecodeLease(holder, record, false);
  if (!lease) return Conflict(fmt::format("{} at an unreadable endpoint", holder.ToString()));
  return Conflict(DescribeHolder(*lease));
}

namespace {

uint32_t InstanceOf(const NodeId& id, const EncodedLease& record) {
  const Result<LeaseRecord> lease = DecodeLease(id, record, false);
  return lease.ok() ? lease->instance : 0;
}

uint64_t BesideOf(const NodeId& id, const EncodedLease& record) {
  const Result<LeaseRecord> lease = DecodeLease(id, record, false);
  return lease.ok() ? lease->beside : 0;
}

bool IsOfAnother(const StoredLease& kept, uint32_t instance) {
  const uint32_t holder = instance == 0 ? 0 : InstanceOf(kept.id, kept.record);
  return holder != 0 && holder != instance;
}

}  // namespace

void AddChange(const NodeId& id, const EncodedLease& record, bool suspect,
               MembershipChanges& changes) {
  Result<LeaseRecord> lease = DecodeLease(id, record, suspect);
  if (lease) {
    changes.leases.push_back(*std::move(lease));
  } else if (!changes.full) {
    changes.gone.push_back(id);
  }
}

uint64_t LeaseRules::NextRevision() {
  TableMeta meta = table_.ReadMeta();
  const bool first = meta.revision == 0;
  meta.revision = std::max(meta.revision + 1, now_ms_);
  // What a reader knows from before the first revision is about a state that is lost.
  if (first) meta.floor = meta.revision;
  table_.WriteMeta(meta);
  return meta.revision;
}

std::optional<StoredLease> LeaseRules::Find(const NodeId& id) {
  for (StoredLease& lease : table_.LeasesOf(id.stable_id)) {
    if (lease.id.epoch == id.epoch) return std::move(lease);
  }
  return std::nullopt;
}

uint64_t LeaseRules::SuccessorOf(const NodeId& id) {
  uint64_t covered = id.epoch;  // Up to which nobody was more than a standby for the one before.
  for (const StoredLease& lease : table_.LeasesOf(id.stable_id)) {
    if (lease.id.epoch <= id.epoch) continue;
    const uint64_t beside = BesideOf(lease.id, lease.record);
    if (beside == 0 || beside > covered) return lease.id.epoch;
    covered = lease.id.epoch;
  }
  const uint64_t mark = table_.EpochMark(id.stable_id);
  return mark > covered ? mark : 0;
}

void LeaseRules::Mark(const NodeId& id) {
  table_.PutEpochMark(id.stable_id, std::max(table_.EpochMark(id.stable_id), id.epoch), now_ms_);
}

void LeaseRules::End(const NodeId& id) {
  table_.EraseLease(id);
  Mark(id);
  table_.PutGone(id, NextRevision());
  const uint64_t dropped = table_.PruneGone(kGoneMax);
  if (dropped == 0) return;
  TableMeta meta = table_.ReadMeta();
  meta.floor = std::max(meta.floor, dropped);
  table_.WriteMeta(meta);
}

void LeaseRules::Start(const NodeId& id, const EncodedLease& record, uint64_t ttl_ms) {
  table_.EraseGone(id);
  table_.PutLease({id, record, false, now_ms_ + ttl_ms, NextRevision()});
}

Result<NodeId> LeaseRules::Acquire(const std::string& stable_id, const EncodedLease& record,
                                   uint64_t ttl_ms, std::optional<uint64_t> beside, bool replace) {
  Sweep();
  if (now_ms_ > kEpochMarkMs) table_.PruneEpochMarks(now_ms_ - kEpochMarkMs);
  uint64_t highest = table_.EpochMark(stable_id);
  const std::vector<StoredLease> live = table_.LeasesOf(stable_id);
  for (auto lease = live.rbegin(); lease != live.rend(); ++lease) {
    highest = std::max(highest, lease->id.epoch);
    if (lease->id.epoch != beside) return HeldBy(lease->id, lease->record);
  }
  if (replace && !live.empty()) End(live.front().id);
  NodeId id{stable_id, highest + 1};
  Mark(id);
  Start(id, record, ttl_ms);
  return id;
}

Result<RenewResult> LeaseRules::Renew(const NodeId& id, const EncodedLease& record,
                                      uint64_t ttl_ms) {
  Sweep();
  RenewResult result;
  if (std::optional<StoredLease> lease = Find(id)) {
    const bool changed = lease->record.core != record.core;
    if (changed && IsOfAnother(*lease, InstanceOf(id, record))) return TakenByAnother(id);
    result.was_suspect = lease->suspect;
    if (lease->suspect || changed) lease->changed = NextRevision();
    const bool unmarked = changed && table_.EpochMark(id.stable_id) < id.epoch;
    if (unmarked && BesideOf(id, record) == 0) Mark(id);
    lease->suspect = false;
    lease->record = record;
    lease->expires_ms = now_ms_ + ttl_ms;
    table_.PutLease(*lease);
  } else {
    const uint64_t successor = SuccessorOf(id);
    if (successor != 0) return SupersededBy(id, successor);
    result.recreated = true;
    // The mark of a standby would be in the way of the one that it stands beside, if that repairs
    // its lease later and is of a version that looks at no more than the mark.
    if (BesideOf(id, record) == 0) Mark(id);
    Start(id, record, ttl_ms);
  }
  result.revision = table_.ReadMeta().revision;
  return result;
}

Status LeaseRules::Release(const NodeId& id, uint32_t instance) {
  Sweep();
  const std::optional<StoredLease> lease = Find(id);
  if (lease && !IsOfAnother(*lease, instance)) End(id);
  return Ok();
}

Status LeaseRules::ReportSuspect(const NodeId& id) {
  Sweep();
  std::optional<StoredLease> lease = Find(id);
  if (!lease || lease->suspect) return Ok();
  lease->suspect = true;
  lease->changed = NextRevision();
  table_.PutLease(*lease);
  return Ok();
}

uint64_t LeaseRules::Sweep() {
  for (const NodeId& id : table_.LeasesExpiredAt(now_ms_, kLapsedMax)) End(id);
  return table_.ReadMeta().revision;
}

std::optional<uint64_t> LeaseRules::Peek() {
  if (!table_.LeasesExpiredAt(now_ms_, 1).empty()) return std::nullopt;
  return table_.ReadMeta().revision;
}

MembershipChanges LeaseRules::ReadChanges(uint64_t since) {
  const TableMeta meta = table_.ReadMeta();
  MembershipChanges changes;
  changes.revision = meta.revision;
  changes.full = since == 0 || since < meta.floor || since > meta.revision;
  const uint64_t after = changes.full ? 0 : since;
  if (!changes.full) changes.gone = table_.GoneAfter(after);
  for (const StoredLease& lease : table_.LeasesChangedAfter(after)) {
    AddChange(lease.id, lease.record, lease.suspect, changes);
  }
  return changes;
}

std::string LeaseRules::PutPolicyIfAbsent(const std::string& json) {
  std::string present = table_.ReadPolicy();
  if (!present.empty()) return present;
  table_.WritePolicy(json);
  return json;
}

Result<uint64_t> LeaseRules::PutDocument(const std::string& name, const std::string& text,
                                         uint64_t expected_version) {
  const uint64_t present = table_.ReadDocument(name).version;
  if (present != expected_version) {
    return Conflict(fmt::format("document {} has version {}, expected was {}", name, present,
                                expected_version));
  }
  if (name.starts_with(MetadataStore::kWatchedPrefix)) NextRevision();
  if (text.empty()) {
    table_.EraseDocument(name);
    return 0;
  }
  // One counter for all documents, so that a document that was deleted and put again never
  // comes back under a version that somebody still holds.
  TableMeta meta = table_.ReadMeta();
  meta.document_version = std::max(meta.document_version + 1, now_ms_);
  table_.WriteMeta(meta);
  table_.WriteDocument(name, {meta.document_version, text});
  return meta.document_version;
}

}  // namespace mooncake::metadata

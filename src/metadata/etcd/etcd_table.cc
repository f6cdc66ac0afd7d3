#include "metadata/etcd/etcd_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "metadata/lease_rules.h"

namespace mooncake::metadata {
namespace {

const std::string kMeta = "meta";
const std::string kPolicy = "system/route-policy/default";
const std::string kLeases = "leases/";
const std::string kLive = "live/";
const std::string kEpochs = "epochs/";
const std::string kGone = "gone/";
const std::string kDocuments = "documents/";

// etcd takes 128 operations in one transaction: each end needs four, each pruning one.
constexpr size_t kEndsMax = 20;
constexpr size_t kPruneMax = 20;
constexpr size_t kSeenMax = 16;
// A lease that is written back as it was read keeps its time.
constexpr uint64_t kKeepExpiry = 0;

uint64_t Number(std::string_view text) { return base::ParseUint(text).value_or(0); }

// The text up to the next space, taken off the front of `rest`.
std::string TakeWord(std::string_view& rest) {
  const size_t end = std::min(rest.find(' '), rest.size());
  std::string word(rest.substr(0, end));
  rest.remove_prefix(std::min(end + 1, rest.size()));
  return word;
}

StoredLease LeaseOf(const NodeId& id, std::string_view value) {
  StoredLease lease;
  lease.id = id;
  lease.expires_ms = kKeepExpiry;
  lease.suspect = TakeWord(value) == "1";
  lease.changed = Number(TakeWord(value));
  lease.record.usage = TakeWord(value);
  lease.record.core = value;
  return lease;
}

std::string ValueOf(const StoredLease& lease) {
  return fmt::format("{} {} {} {}", lease.suspect ? 1 : 0, lease.changed, lease.record.usage,
                     lease.record.core);
}

// The first key after all that begin with `start`, which ends in a byte below 0xff.
std::string EndOf(std::string start) {
  ++start.back();
  return start;
}

}  // namespace

EtcdTable::EtcdTable(EtcdClient& client, const std::string& prefix, EtcdSeen seen, uint64_t now_ms,
                     uint64_t deadline_ms)
    : client_(client),
      prefix_(prefix),
      seen_(std::move(seen)),
      now_ms_(now_ms),
      deadline_ms_(deadline_ms) {}

EtcdRange EtcdTable::One(const std::string& key) const { return {.key = prefix_ + key}; }

EtcdRange EtcdTable::All(const std::string& folder) const {
  return {.key = prefix_ + folder, .end = EndOf(prefix_ + folder)};
}

// Whatever changed after our `revision` was written after the moment at which it was in force.
EtcdRange EtcdTable::ChangedSince(const std::string& folder, uint64_t revision) const {
  EtcdRange range = All(folder);
  const auto seen = seen_.at_revision.find(revision);
  if (revision != 0 && seen != seen_.at_revision.end()) range.changed_since = seen->second + 1;
  return range;
}

std::vector<EtcdRangeResult> EtcdTable::Read(std::vector<EtcdRange> ranges) {
  if (!status_) return std::vector<EtcdRangeResult>(ranges.size());
  const size_t count = ranges.size();
  for (EtcdRange& range : ranges) range.revision = snapshot_;
  Result<EtcdRead> read = client_.Read(ranges, deadline_ms_, outdated_);
  if (!read) {
    status_ = std::move(read).error();
    return std::vector<EtcdRangeResult>(count);
  }
  const bool another = read->cluster != seen_.cluster || read->revision < snapshot_;
  if (snapshot_ == 0) {
    snapshot_ = read->revision;
    const bool went_back =
        !seen_.at_revision.empty() && seen_.at_revision.rbegin()->second > read->revision;
    if (another || went_back) seen_.at_revision.clear();
    seen_.cluster = read->cluster;
  } else if (another) {  // Between two reads; what they say does not fit together.
    outdated_ = true;
    status_ = MetadataError("etcd was replaced by another one in the middle of a call");
  }
  for (size_t i = 0; i < count; ++i) {
    const EtcdRange& range = ranges[i];
    const auto fits = [&](const EtcdKey& key) {
      return range.end.empty() ? key.key == range.key : key.key.starts_with(range.key);
    };
    if (std::ranges::all_of(read->ranges[i].keys, fits)) continue;
    status_ = MetadataError("etcd gave a key that was not asked for");
    return std::vector<EtcdRangeResult>(count);
  }
  return std::move(read->ranges);
}

void EtcdTable::Keep(const EtcdKey& key) {
  const std::string name = key.key.substr(prefix_.size());  // Read has looked that it is there.
  Cell& cell = cells_[name];
  if (cell.dirty) return;
  std::string_view value = key.value;
  TakeWord(value);  // The nonce.
  cell = {std::string(value), key.written, key.lease, true, false};
}

void EtcdTable::KeepAbsent(const std::string& key) {
  Cell& cell = cells_[key];
  if (!cell.dirty && !cell.known) cell.known = true;
}

EtcdTable::Cell& EtcdTable::Load(const std::string& key) {
  Cell& cell = cells_[key];
  if (cell.known || cell.dirty) return cell;
  LoadMeta();
  for (const EtcdRangeResult& range : Read({One(key)})) {
    for (const EtcdKey& found : range.keys) Keep(found);
  }
  KeepAbsent(key);
  return cells_[key];
}

void EtcdTable::Write(const std::string& key, std::string value, uint64_t lease) {
  Cell& cell = cells_[key];
  cell.value = std::move(value);
  cell.lease = lease;
  cell.dirty = true;
}

void EtcdTable::Erase(const std::string& key) {
  Cell& cell = cells_[key];
  cell.value.reset();
  cell.lease = 0;
  cell.dirty = true;
}

// The one small command of an idle poll. Equal counts mean that no lease has lapsed, as both
// keys of one are always written and erased together.
void EtcdTable::LoadMeta() {
  if (cells_[kMeta].known) return;
  EtcdRange leases = All(kLeases);
  EtcdRange live = All(kLive);
  leases.count_only = live.count_only = true;
  const std::vector<EtcdRangeResult> found = Read({One(kMeta), leases, live});
  for (const EtcdKey& key : found[0].keys) Keep(key);
  KeepAbsent(kMeta);
  lease_count_ = found[1].count;
  live_count_ = found[2].count;
  if (!status_) return;
  const uint64_t revision = ReadMeta().revision;
  seen_.revision_max = std::max(seen_.revision_max, revision);
  seen_.at_revision[revision] = snapshot_;
  if (seen_.at_revision.size() > kSeenMax) seen_.at_revision.erase(seen_.at_revision.begin());
}

TableMeta EtcdTable::ReadMeta() {
  LoadMeta();
  std::string_view value = cells_[kMeta].value ? *cells_[kMeta].value : std::string_view();
  TableMeta meta;
  meta.revision = Number(TakeWord(value));
  meta.floor = Number(TakeWord(value));
  meta.document_version = Number(TakeWord(value));
  return meta;
}

void EtcdTable::WriteMeta(const TableMeta& meta) {
  Write(kMeta, fmt::format("{} {} {}", meta.revision, meta.floor, meta.document_version));
}

void EtcdTable::LoadStable(const std::string& stable_id) {
  LoadMeta();
  if (!stable_ids_.insert(stable_id).second) return;
  // Ids that go on with a colon come along; they do no harm.
  const std::string mark = kEpochs + stable_id;
  for (const EtcdRangeResult& range :
       Read({All(kLeases + stable_id + ":"), All(kLive + stable_id + ":"), One(mark)})) {
    for (const EtcdKey& key : range.keys) Keep(key);
  }
  KeepAbsent(mark);
}

std::vector<StoredLease> EtcdTable::LeasesOf(const std::string& stable_id) {
  LoadStable(stable_id);
  std::vector<StoredLease> leases;
  const std::string start = kLeases + stable_id + ":";
  for (auto it = cells_.lower_bound(start); it != cells_.end() && it->first.starts_with(start);
       ++it) {
    const Result<NodeId> id = ParseNodeId(it->first.substr(kLeases.size()));
    if (!id || id->stable_id != stable_id || !it->second.value) continue;
    leases.push_back(LeaseOf(*id, *it->second.value));
  }
  std::ranges::sort(leases, {}, [](const StoredLease& lease) { return lease.id.epoch; });
  return leases;
}

std::vector<StoredLease> EtcdTable::LeasesChangedAfter(uint64_t revision) {
  LoadMeta();
  std::vector<StoredLease> leases;
  const std::vector<EtcdRangeResult> found = Read({ChangedSince(kLeases, revision)});
  for (const EtcdKey& key : found[0].keys) Keep(key);
  for (auto it = cells_.lower_bound(kLeases); it != cells_.end() && it->first.starts_with(kLeases);
       ++it) {
    const Result<NodeId> id = ParseNodeId(it->first.substr(kLeases.size()));
    if (!id || !it->second.value) continue;
    StoredLease lease = LeaseOf(*id, *it->second.value);
    if (lease.changed > revision || revision == 0) leases.push_back(std::move(lease));
  }
  return leases;
}

// Finds the leases without a live key, and what ending them needs to know.
void EtcdTable::LoadLapsed() {
  LoadMeta();
  const bool none = lease_count_ == live_count_ || seen_.was_away;
  if (std::exchange(lapsed_loaded_, true) || none) return;
  EtcdRange leases = All(kLeases);
  EtcdRange live = All(kLive);
  leases.keys_only = live.keys_only = true;
  const std::vector<EtcdRangeResult> found = Read({leases, live});
  std::set<std::string> names;
  for (const EtcdKey& key : found[1].keys) names.insert(key.key.substr((prefix_ + kLive).size()));
  std::vector<EtcdRange> needed;
  for (const EtcdKey& key : found[0].keys) {
    const std::string name = key.key.substr((prefix_ + kLeases).size());
    Result<NodeId> id = ParseNodeId(name);
    if (names.contains(name) || !id || lapsed_.size() == kEndsMax) continue;
    KeepAbsent(kLive + name);
    needed.push_back(One(kLeases + name));
    needed.push_back(One(kEpochs + id->stable_id));
    lapsed_.push_back(*std::move(id));
  }
  if (needed.empty()) return;
  for (const EtcdRangeResult& range : Read(std::move(needed))) {
    for (const EtcdKey& key : range.keys) Keep(key);
  }
  for (const NodeId& id : lapsed_) KeepAbsent(kEpochs + id.stable_id);
}

std::vector<NodeId> EtcdTable::LeasesExpiredAt(uint64_t /*now_ms*/, size_t count_max) {
  LoadLapsed();
  std::vector<NodeId> ids;
  for (const NodeId& id : lapsed_) {
    if (ids.size() < count_max && cells_[kLeases + id.ToString()].value) ids.push_back(id);
  }
  return ids;
}

void EtcdTable::PutLease(const StoredLease& lease) {
  const std::string name = kLeases + lease.id.ToString();
  std::string value = ValueOf(lease);
  // A heartbeat that changes nothing leaves no history behind.
  if (cells_[name].value != value) Write(name, std::move(value));
  if (lease.expires_ms != kKeepExpiry) ttls_ms_[lease.id] = lease.expires_ms - now_ms_;
}

void EtcdTable::EraseLease(const NodeId& id) {
  Erase(kLeases + id.ToString());
  Erase(kLive + id.ToString());
  ttls_ms_.erase(id);
}

uint64_t EtcdTable::EpochMark(const std::string& stable_id) {
  const Cell& cell = cells_[kEpochs + stable_id];
  if (!cell.known && !cell.dirty) LoadStable(stable_id);
  return cell.value ? Number(*cell.value) : 0;
}

void EtcdTable::PutEpochMark(const std::string& stable_id, uint64_t epoch, uint64_t /*seen_ms*/) {
  Write(kEpochs + stable_id, std::to_string(epoch));
  marks_.insert(stable_id);
}

void EtcdTable::PruneEpochMarks(uint64_t /*seen_ms*/) {}  // etcd does, see ExtendLeases.

std::vector<NodeId> EtcdTable::GoneAfter(uint64_t revision) {
  LoadMeta();
  const std::vector<EtcdRangeResult> found = Read({ChangedSince(kGone, revision)});
  for (const EtcdKey& key : found[0].keys) Keep(key);
  std::vector<std::pair<uint64_t, NodeId>> ended;
  for (auto it = cells_.lower_bound(kGone); it != cells_.end() && it->first.starts_with(kGone);
       ++it) {
    Result<NodeId> id = ParseNodeId(it->first.substr(kGone.size()));
    const uint64_t at = it->second.value ? Number(*it->second.value) : 0;
    if (id.ok() && at > revision) ended.emplace_back(at, *std::move(id));
  }
  std::ranges::sort(ended);
  std::vector<NodeId> ids;
  ids.reserve(ended.size());
  for (auto& [at, id] : ended) ids.push_back(std::move(id));
  return ids;
}

void EtcdTable::PutGone(const NodeId& id, uint64_t revision) {
  Write(kGone + id.ToString(), std::to_string(revision));
  if (gone_count_) ++*gone_count_;
}

void EtcdTable::EraseGone(const NodeId& id) { Erase(kGone + id.ToString()); }

uint64_t EtcdTable::PruneGone(size_t keep) {
  LoadMeta();
  if (!gone_count_) {
    EtcdRange all = All(kGone);
    all.count_only = true;
    gone_count_ = Read({all})[0].count + 1;  // The one that was just put.
  }
  if (*gone_count_ <= keep) return 0;
  EtcdRange oldest = All(kGone);
  oldest.oldest_max = std::min<uint64_t>(*gone_count_ - keep, kPruneMax);
  uint64_t dropped = 0;
  const std::vector<EtcdRangeResult> found = Read({oldest});
  for (const EtcdKey& key : found[0].keys) {
    const std::string name = key.key.substr(prefix_.size());
    if (cells_[name].dirty) continue;  // Erased already, or just put.
    Keep(key);
    dropped = std::max(dropped, cells_[name].value ? Number(*cells_[name].value) : 0);
    Erase(name);
    --*gone_count_;
  }
  return dropped;
}

std::string EtcdTable::ReadPolicy() { return Load(kPolicy).value.value_or(""); }

void EtcdTable::WritePolicy(const std::string& json) { Write(kPolicy, json); }

MetadataStore::Document EtcdTable::ReadDocument(const std::string& name) {
  const Cell& cell = Load(kDocuments + name);
  if (!cell.value) return {};
  std::string_view text = *cell.value;
  const uint64_t version = Number(TakeWord(text));
  return {version, std::string(text)};
}

void EtcdTable::WriteDocument(const std::string& name, const MetadataStore::Document& document) {
  Write(kDocuments + name, fmt::format("{} {}", document.version, document.text));
}

void EtcdTable::EraseDocument(const std::string& name) {
  Erase(kDocuments + name);
  WriteMeta(ReadMeta());  // So that the commit puts something, and is known by its nonce.
}

std::vector<MetadataStore::NamedDocument> EtcdTable::DocumentsNamed(const std::string& prefix) {
  LoadMeta();
  const std::string folder = kDocuments + prefix;
  const std::vector<EtcdRangeResult> found = Read({All(folder)});
  for (const EtcdKey& key : found[0].keys) Keep(key);
  std::vector<MetadataStore::NamedDocument> named;
  for (auto it = cells_.lower_bound(folder); it != cells_.end() && it->first.starts_with(folder);
       ++it) {
    if (!it->second.value) continue;
    std::string_view text = *it->second.value;
    const uint64_t version = Number(TakeWord(text));
    named.push_back({it->first.substr(kDocuments.size()), {version, std::string(text)}});
  }
  return named;
}

Result<bool> EtcdTable::ExtendLeases(EtcdGrants& grants) {
  const auto grant = [&](uint64_t seconds) -> Result<uint64_t> {
    const auto unused = grants.find(seconds);
    if (unused != grants.end()) return unused->second;
    MC_TRY(const uint64_t lease, client_.Grant(seconds, deadline_ms_));
    grants[seconds] = lease;
    return lease;
  };
  for (const std::string& stable_id : marks_) {
    const auto started = ttls_ms_.lower_bound({stable_id, 0});
    if (started != ttls_ms_.end() && started->first.stable_id == stable_id) continue;
    MC_TRY(cells_[kEpochs + stable_id].lease, grant(kEpochMarkMs / 1000));
  }
  for (const auto& [id, ttl_ms] : ttls_ms_) {
    const std::string name = kLive + id.ToString();
    const uint64_t seconds = (ttl_ms + 999) / 1000;
    const Cell& live = cells_[name];
    if (live.value == std::to_string(seconds) && live.lease != 0) {
      MC_TRY(const bool renewed, client_.KeepAlive(live.lease, deadline_ms_));
      if (!renewed) return false;
    } else {
      MC_TRY(const uint64_t lease, grant(seconds));
      Write(name, std::to_string(seconds), lease);
    }
  }
  return true;
}

EtcdCommit EtcdTable::TakeCommit(const std::string& nonce) const {
  EtcdCommit commit;
  for (const auto& [name, cell] : cells_) {
    const std::string key = prefix_ + name;
    if (!cell.dirty) continue;
    if (cell.known) commit.expected.push_back({key, cell.written});
    if (cell.value) {
      commit.puts.push_back({key, fmt::format("{} {}", nonce, *cell.value), 0, cell.lease});
    } else {
      commit.erased.push_back(key);
    }
  }
  // A lease whose time goes on is one that nobody has ended meanwhile.
  for (const auto& [id, ttl_ms] : ttls_ms_) {
    for (const std::string& folder : {kLeases, kLive}) {
      const auto found = cells_.find(folder + id.ToString());
      const bool as_read = found != cells_.end() && found->second.known && !found->second.dirty;
      if (as_read) commit.expected.push_back({prefix_ + found->first, found->second.written});
    }
  }
  return commit;
}

}  // namespace mooncake::metadata

#include "metadata/sqlite/sqlite_table.h"

namespace mooncake::metadata {
namespace {

constexpr const char* kLeasesOf =
    "SELECT stable_id, epoch, core, usage, suspect, expires_ms, changed FROM leases "
    "WHERE keyspace = ? AND stable_id = ? ORDER BY epoch";
constexpr const char* kLeasesChanged =
    "SELECT stable_id, epoch, core, usage, suspect, expires_ms, changed FROM leases "
    "WHERE keyspace = ? AND changed > ? ORDER BY stable_id, epoch";

std::vector<StoredLease> ReadLeases(SqliteStatement& query) {
  std::vector<StoredLease> leases;
  while (query.Step()) {
    leases.push_back({{query.Text(0), query.Number(1)},
                      {query.Text(2), query.Text(3)},
                      query.Number(4) != 0,
                      query.Number(5),
                      query.Number(6)});
  }
  return leases;
}

std::vector<NodeId> ReadIds(SqliteStatement& query) {
  std::vector<NodeId> ids;
  while (query.Step()) ids.push_back({query.Text(0), query.Number(1)});
  return ids;
}

}  // namespace

TableMeta SqliteTable::ReadMeta() {
  SqliteStatement query(connection_,
                        "SELECT revision, floor, document_version FROM meta WHERE keyspace = ?");
  if (!query.Bind(keyspace_).Step()) return {};
  return {query.Number(0), query.Number(1), query.Number(2)};
}

void SqliteTable::WriteMeta(const TableMeta& meta) {
  SqliteStatement query(connection_, "INSERT OR REPLACE INTO meta VALUES (?, ?, ?, ?)");
  query.Bind(keyspace_).Bind(meta.revision).Bind(meta.floor).Bind(meta.document_version).Run();
}

std::vector<StoredLease> SqliteTable::LeasesOf(const std::string& stable_id) {
  SqliteStatement query(connection_, kLeasesOf);
  return ReadLeases(query.Bind(keyspace_).Bind(stable_id));
}

std::vector<StoredLease> SqliteTable::LeasesChangedAfter(uint64_t revision) {
  SqliteStatement query(connection_, kLeasesChanged);
  return ReadLeases(query.Bind(keyspace_).Bind(revision));
}

std::vector<NodeId> SqliteTable::LeasesExpiredAt(uint64_t now_ms, size_t count_max) {
  SqliteStatement query(connection_,
                        "SELECT stable_id, epoch FROM leases "
                        "WHERE keyspace = ? AND expires_ms <= ? LIMIT ?");
  return ReadIds(query.Bind(keyspace_).Bind(now_ms).Bind(uint64_t{count_max}));
}

void SqliteTable::PutLease(const StoredLease& lease) {
  SqliteStatement query(connection_,
                        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
  query.Bind(keyspace_).Bind(lease.id.stable_id).Bind(lease.id.epoch);
  query.Bind(lease.record.core).Bind(lease.record.usage);
  query.Bind(uint64_t{lease.suspect}).Bind(lease.expires_ms).Bind(lease.changed).Run();
}

void SqliteTable::EraseLease(const NodeId& id) {
  SqliteStatement query(connection_,
                        "DELETE FROM leases WHERE keyspace = ? AND stable_id = ? AND epoch = ?");
  query.Bind(keyspace_).Bind(id.stable_id).Bind(id.epoch).Run();
}

uint64_t SqliteTable::EpochMark(const std::string& stable_id) {
  SqliteStatement query(connection_,
                        "SELECT epoch FROM epoch_marks WHERE keyspace = ? AND stable_id = ?");
  return query.Bind(keyspace_).Bind(stable_id).Step() ? query.Number(0) : 0;
}

void SqliteTable::PutEpochMark(const std::string& stable_id, uint64_t epoch, uint64_t seen_ms) {
  SqliteStatement query(connection_, "INSERT OR REPLACE INTO epoch_marks VALUES (?, ?, ?, ?)");
  query.Bind(keyspace_).Bind(stable_id).Bind(epoch).Bind(seen_ms).Run();
}

void SqliteTable::PruneEpochMarks(uint64_t seen_ms) {
  SqliteStatement query(connection_,
                        "DELETE FROM epoch_marks WHERE keyspace = ?1 AND seen_ms < ?2 "
                        "AND stable_id NOT IN (SELECT stable_id FROM leases WHERE keyspace = ?1)");
  query.Bind(keyspace_).Bind(seen_ms).Run();
}

std::vector<NodeId> SqliteTable::GoneAfter(uint64_t revision) {
  SqliteStatement query(connection_,
                        "SELECT stable_id, epoch FROM gone WHERE keyspace = ? AND revision > ? "
                        "ORDER BY revision");
  return ReadIds(query.Bind(keyspace_).Bind(revision));
}

void SqliteTable::PutGone(const NodeId& id, uint64_t revision) {
  EraseGone(id);
  SqliteStatement query(connection_, "INSERT OR REPLACE INTO gone VALUES (?, ?, ?, ?)");
  query.Bind(keyspace_).Bind(revision).Bind(id.stable_id).Bind(id.epoch).Run();
}

void SqliteTable::EraseGone(const NodeId& id) {
  SqliteStatement query(connection_,
                        "DELETE FROM gone WHERE keyspace = ? AND stable_id = ? AND epoch = ?");
  query.Bind(keyspace_).Bind(id.stable_id).Bind(id.epoch).Run();
}

uint64_t SqliteTable::PruneGone(size_t keep) {
  SqliteStatement last(connection_,
                       "SELECT revision FROM gone WHERE keyspace = ? "
                       "ORDER BY revision DESC LIMIT 1 OFFSET ?");
  if (!last.Bind(keyspace_).Bind(uint64_t{keep}).Step()) return 0;
  const uint64_t dropped = last.Number(0);
  SqliteStatement query(connection_, "DELETE FROM gone WHERE keyspace = ? AND revision <= ?");
  query.Bind(keyspace_).Bind(dropped).Run();
  return dropped;
}

std::string SqliteTable::ReadPolicy() {
  SqliteStatement query(connection_, "SELECT json FROM policies WHERE keyspace = ?");
  return query.Bind(keyspace_).Step() ? query.Text(0) : std::string();
}

void SqliteTable::WritePolicy(const std::string& json) {
  SqliteStatement query(connection_, "INSERT OR REPLACE INTO policies VALUES (?, ?)");
  query.Bind(keyspace_).Bind(json).Run();
}

MetadataStore::Document SqliteTable::ReadDocument(const std::string& name) {
  SqliteStatement query(connection_,
                        "SELECT version, text FROM documents WHERE keyspace = ? AND name = ?");
  if (!query.Bind(keyspace_).Bind(name).Step()) return {};
  return {query.Number(0), query.Text(1)};
}

void SqliteTable::WriteDocument(const std::string& name, const MetadataStore::Document& document) {
  SqliteStatement query(connection_, "INSERT OR REPLACE INTO documents VALUES (?, ?, ?, ?)");
  query.Bind(keyspace_).Bind(name).Bind(document.version).Bind(document.text).Run();
}

void SqliteTable::EraseDocument(const std::string& name) {
  SqliteStatement query(connection_, "DELETE FROM documents WHERE keyspace = ? AND name = ?");
  query.Bind(keyspace_).Bind(name).Run();
}

std::vector<MetadataStore::NamedDocument> SqliteTable::DocumentsNamed(const std::string& prefix) {
  // Not LIKE: a name may hold its wildcards.
  SqliteStatement query(connection_,
                        "SELECT name, version, text FROM documents "
                        "WHERE keyspace = ? AND substr(name, 1, length(?)) = ? ORDER BY name");
  query.Bind(keyspace_).Bind(prefix).Bind(prefix);
  std::vector<MetadataStore::NamedDocument> named;
  while (query.Step()) named.push_back({query.Text(0), {query.Number(1), query.Text(2)}});
  return named;
}

}  // namespace mooncake::metadata

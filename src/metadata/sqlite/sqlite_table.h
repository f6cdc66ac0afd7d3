// The tables of one keyspace in a SQLite database. Used inside one transaction.
#pragma once

#include <string>
#include <vector>

#include "metadata/lease_table.h"
#include "metadata/sqlite/sqlite_connection.h"

namespace mooncake::metadata {

class SqliteTable final : public LeaseTable {
 public:
  SqliteTable(SqliteConnection& connection, const std::string& keyspace)
      : connection_(connection), keyspace_(keyspace) {}

  TableMeta ReadMeta() override;
  void WriteMeta(const TableMeta& meta) override;
  std::vector<StoredLease> LeasesOf(const std::string& stable_id) override;
  std::vector<StoredLease> LeasesChangedAfter(uint64_t revision) override;
  std::vector<NodeId> LeasesExpiredAt(uint64_t now_ms, size_t count_max) override;
  void PutLease(const StoredLease& lease) override;
  void EraseLease(const NodeId& id) override;
  uint64_t EpochMark(const std::string& stable_id) override;
  void PutEpochMark(const std::string& stable_id, uint64_t epoch, uint64_t seen_ms) override;
  void PruneEpochMarks(uint64_t seen_ms) override;
  std::vector<NodeId> GoneAfter(uint64_t revision) override;
  void PutGone(const NodeId& id, uint64_t revision) override;
  void EraseGone(const NodeId& id) override;
  uint64_t PruneGone(size_t keep) override;
  std::string ReadPolicy() override;
  void WritePolicy(const std::string& json) override;
  MetadataStore::Document ReadDocument(const std::string& name) override;
  void WriteDocument(const std::string& name, const MetadataStore::Document& document) override;
  void EraseDocument(const std::string& name) override;
  std::vector<MetadataStore::NamedDocument> DocumentsNamed(const std::string& prefix) override;

 private:
  SqliteConnection& connection_;
  const std::string& keyspace_;
};

}  // namespace mooncake::metadata

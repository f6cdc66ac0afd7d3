// What the lease rules need of a place that keeps things: a few small tables of one keyspace.
// LeaseRules decides, a LeaseTable only stores; memory and SQLite implement it.
//
// Used inside one transaction by one thread. The calls do not report failure one by one: a table
// that can fail remembers its first error and refuses to commit, so nothing that was decided on
// a failed read takes effect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "metadata/metadata_store.h"
#include "metadata/records.h"

namespace mooncake::metadata {

struct StoredLease {
  NodeId id;
  EncodedLease record;
  bool suspect = false;
  uint64_t expires_ms = 0;
  uint64_t changed = 0;  // The revision of the last change that others act on.
};

struct TableMeta {
  uint64_t revision = 0;
  uint64_t floor = 0;  // Changes up to this revision are not remembered one by one.
  uint64_t document_version = 0;
};

class LeaseTable {
 public:
  virtual ~LeaseTable() = default;

  virtual TableMeta ReadMeta() = 0;
  virtual void WriteMeta(const TableMeta& meta) = 0;

  // Ordered by epoch.
  virtual std::vector<StoredLease> LeasesOf(const std::string& stable_id) = 0;
  virtual std::vector<StoredLease> LeasesChangedAfter(uint64_t revision) = 0;
  virtual std::vector<NodeId> LeasesExpiredAt(uint64_t now_ms, size_t count_max) = 0;
  virtual void PutLease(const StoredLease& lease) = 0;
  virtual void EraseLease(const NodeId& id) = 0;

  // The highest epoch that a stable_id had; 0: not remembered.
  virtual uint64_t EpochMark(const std::string& stable_id) = 0;
  virtual void PutEpochMark(const std::string& stable_id, uint64_t epoch, uint64_t seen_ms) = 0;
  // Drops the marks seen before `seen_ms` whose stable_id has no lease.
  virtual void PruneEpochMarks(uint64_t seen_ms) = 0;

  // Ended leases, with the revision that ended them.
  virtual std::vector<NodeId> GoneAfter(uint64_t revision) = 0;
  virtual void PutGone(const NodeId& id, uint64_t revision) = 0;
  virtual void EraseGone(const NodeId& id) = 0;
  // Keeps the latest `keep`; returns the highest revision that was dropped, 0 if none.
  virtual uint64_t PruneGone(size_t keep) = 0;

  virtual std::string ReadPolicy() = 0;  // Empty: none.
  virtual void WritePolicy(const std::string& json) = 0;
  virtual MetadataStore::Document ReadDocument(const std::string& name) = 0;
  virtual void WriteDocument(const std::string& name, const MetadataStore::Document& document) = 0;
  virtual void EraseDocument(const std::string& name) = 0;
  // Ordered by name.
  virtual std::vector<MetadataStore::NamedDocument> DocumentsNamed(const std::string& prefix) = 0;
};

}  // namespace mooncake::metadata

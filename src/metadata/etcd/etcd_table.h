// The tables of one keyspace in etcd, for one run of LeaseRules: reads come from one revision of
// etcd, writes are kept back until they are committed all together.
//
// Keys, under "<prefix>/{keyspace}/":
//   meta                          "<revision> <floor> <document version>"
//   leases/<stable_id>:<epoch>    "<suspect> <changed> <usage> <core>"
//   live/<stable_id>:<epoch>      seconds; etcd ends it with the lease of etcd that it carries
//   epochs/<stable_id>            the highest epoch; etcd ends it 7 days after the last lease
//   gone/<stable_id>:<epoch>      the revision that ended it, the latest 1000
//   documents/<name>              "<version> <text>"
//   system/route-policy/default   JSON
// Every value has the nonce of the commit that wrote it in front, so that a client whose answer
// was lost knows its own. A lease without its live key has lapsed: the clock is etcd's. As every
// change of the membership writes meta, and expects it as it was read, changes are one after the
// other; a heartbeat touches its own keys only.
//
// Used by one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "metadata/etcd/etcd_client.h"
#include "metadata/lease_table.h"

namespace mooncake::metadata {

// What a client has seen of a service, so that the next read fetches only what is newer.
struct EtcdSeen {
  uint64_t cluster = 0;
  uint64_t revision_max = 0;                 // Of ours.
  std::map<uint64_t, uint64_t> at_revision;  // Of ours, and that of etcd at which it was in force.
  // It did not answer until a moment ago. A lease that lapsed meanwhile says nothing about its
  // owner, who gets the time to renew it.
  bool was_away = false;
};

// Leases of etcd by their seconds, granted for a commit that did not happen.
using EtcdGrants = std::map<uint64_t, uint64_t>;

class EtcdTable final : public LeaseTable {
 public:
  EtcdTable(EtcdClient& client, const std::string& prefix, EtcdSeen seen, uint64_t now_ms,
            uint64_t deadline_ms);

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

  // The first read that failed, if any: nothing that was decided on it may take effect.
  const Status& status() const { return status_; }
  bool outdated() const { return outdated_; }  // It failed because the snapshot is gone.
  const EtcdSeen& seen() const { return seen_; }

  // Renews or grants what the written leases and marks need. False: a lease lapsed meanwhile.
  Result<bool> ExtendLeases(EtcdGrants& grants);
  // What the run wrote.
  EtcdCommit TakeCommit(const std::string& nonce) const;

 private:
  struct Cell {
    std::optional<std::string> value;  // None: absent.
    uint64_t written = 0;              // As EtcdKey.
    uint64_t lease = 0;
    bool known = false;  // Read from etcd, so that a commit can expect it unchanged.
    bool dirty = false;
  };

  std::vector<EtcdRangeResult> Read(std::vector<EtcdRange> ranges);
  void LoadMeta();
  void LoadStable(const std::string& stable_id);
  void LoadLapsed();
  Cell& Load(const std::string& key);
  void Keep(const EtcdKey& key);
  void KeepAbsent(const std::string& key);
  void Write(const std::string& key, std::string value, uint64_t lease = 0);
  void Erase(const std::string& key);
  EtcdRange One(const std::string& key) const;
  EtcdRange All(const std::string& folder) const;
  EtcdRange ChangedSince(const std::string& folder, uint64_t revision) const;

  EtcdClient& client_;
  const std::string& prefix_;
  EtcdSeen seen_;
  const uint64_t now_ms_;
  const uint64_t deadline_ms_;

  std::map<std::string, Cell> cells_;  // By key without the prefix.
  std::set<std::string> stable_ids_;   // Loaded whole.
  std::map<NodeId, uint64_t> ttls_ms_;
  std::set<std::string> marks_;  // Written epoch marks.
  std::vector<NodeId> lapsed_;
  uint64_t snapshot_ = 0;  // The revision of etcd; 0: nothing was read yet.
  uint64_t lease_count_ = 0;
  uint64_t live_count_ = 0;
  std::optional<uint64_t> gone_count_;
  bool lapsed_loaded_ = false;
  bool outdated_ = false;
  Status status_;
};

}  // namespace mooncake::metadata

#include "metadata/memory/memory_metadata.h"

#include <fmt/format.h>

#include <algorithm>

namespace mooncake::metadata {

class MemoryState::Table final : public LeaseTable {
 public:
  TableMeta ReadMeta() override { return meta_; }
  void WriteMeta(const TableMeta& meta) override { meta_ = meta; }

  std::vector<StoredLease> LeasesOf(const std::string& stable_id) override {
    std::vector<StoredLease> found;
    for (auto it = leases_.lower_bound(NodeId{stable_id, 0});
         it != leases_.end() && it->first.stable_id == stable_id; ++it) {
      found.push_back(it->second);
    }
    return found;
  }

  std::vector<StoredLease> LeasesChangedAfter(uint64_t revision) override {
    std::vector<StoredLease> found;
    for (const auto& [id, lease] : leases_) {
      if (lease.changed > revision) found.push_back(lease);
    }
    return found;
  }

  std::vector<NodeId> LeasesExpiredAt(uint64_t now_ms, size_t count_max) override {
    std::vector<NodeId> found;
    for (const auto& [id, lease] : leases_) {
      if (found.size() == count_max) break;
      if (lease.expires_ms <= now_ms) found.push_back(id);
    }
    return found;
  }

  void PutLease(const StoredLease& lease) override { leases_[lease.id] = lease; }
  void EraseLease(const NodeId& id) override { leases_.erase(id); }

  uint64_t EpochMark(const std::string& stable_id) override {
    const auto mark = marks_.find(stable_id);
    return mark == marks_.end() ? 0 : mark->second.epoch;
  }

  void PutEpochMark(const std::string& stable_id, uint64_t epoch, uint64_t seen_ms) override {
    marks_[stable_id] = {epoch, seen_ms};
  }

  void PruneEpochMarks(uint64_t seen_ms) override {
    std::erase_if(marks_, [&](const auto& mark) {
      return mark.second.seen_ms < seen_ms && LeasesOf(mark.first).empty();
    });
  }

  std::vector<NodeId> GoneAfter(uint64_t revision) override {
    std::vector<NodeId> found;
    for (auto it = gone_.upper_bound(revision); it != gone_.end(); ++it) {
      found.push_back(it->second);
    }
    return found;
  }

  void PutGone(const NodeId& id, uint64_t revision) override {
    EraseGone(id);
    gone_.emplace(revision, id);
  }

  void EraseGone(const NodeId& id) override {
    std::erase_if(gone_, [&](const auto& entry) { return entry.second == id; });
  }

  uint64_t PruneGone(size_t keep) override {
    uint64_t dropped = 0;
    while (gone_.size() > keep) {
      dropped = gone_.begin()->first;
      gone_.erase(gone_.begin());
    }
    return dropped;
  }

  std::string ReadPolicy() override { return policy_; }
  void WritePolicy(const std::string& json) override { policy_ = json; }

  MetadataStore::Document ReadDocument(const std::string& name) override {
    const auto found = documents_.find(name);
    return found == documents_.end() ? MetadataStore::Document{} : found->second;
  }

  void WriteDocument(const std::string& name, const MetadataStore::Document& document) override {
    documents_[name] = document;
  }

  void EraseDocument(const std::string& name) override { documents_.erase(name); }

  std::vector<MetadataStore::NamedDocument> DocumentsNamed(const std::string& prefix) override {
    std::vector<MetadataStore::NamedDocument> named;
    for (auto it = documents_.lower_bound(prefix);
         it != documents_.end() && it->first.starts_with(prefix); ++it) {
      named.push_back({it->first, it->second});
    }
    return named;
  }

 private:
  struct Mark {
    uint64_t epoch = 0;
    uint64_t seen_ms = 0;
  };

  TableMeta meta_;
  std::map<NodeId, StoredLease> leases_;
  std::map<std::string, Mark> marks_;
  std::map<uint64_t, NodeId> gone_;  // By the revision that ended it.
  std::string policy_;
  std::map<std::string, MetadataStore::Document> documents_;
};

MemoryState::MemoryState() : table_(std::make_unique<Table>()) {}
MemoryState::~MemoryState() = default;

void MemoryState::Run(const std::function<void(LeaseTable& table)>& body) {
  base::MutexLock lock(mu_);
  body(*table_);
}

void MemoryState::Forget() {
  base::MutexLock lock(mu_);
  table_ = std::make_unique<Table>();
}

std::shared_ptr<MemoryState> MemoryRegistry::Find(const std::string& name,
                                                  const std::string& keyspace) {
  base::MutexLock lock(mu_);
  std::shared_ptr<MemoryState>& state = states_[{name, keyspace}];
  if (state == nullptr) state = std::make_shared<MemoryState>();
  return state;
}

Result<std::unique_ptr<MetadataStore>> MemoryMetadata::Open(std::string_view url,
                                                            const std::string& keyspace,
                                                            MemoryRegistry& registry,
                                                            Runtime& runtime) {
  constexpr std::string_view kScheme = "memory://";
  if (!url.starts_with(kScheme) || url.size() == kScheme.size()) {
    return InvalidArgument(fmt::format("metadata_url is '{}', allowed is memory://NAME", url));
  }
  std::shared_ptr<MemoryState> state =
      registry.Find(std::string(url.substr(kScheme.size())), keyspace);
  std::unique_ptr<MetadataStore> store = std::make_unique<MemoryMetadata>(state, runtime);
  return store;
}

MemoryMetadata::MemoryMetadata(std::shared_ptr<MemoryState> state, Runtime& runtime)
    : state_(std::move(state)), runtime_(runtime) {}

Status MemoryMetadata::Transact(Access /*access*/, const Body& body) {
  const uint64_t now_ms = runtime_.NowMs();
  state_->Run([&](LeaseTable& table) { body(table, now_ms); });
  return Ok();
}

}  // namespace mooncake::metadata

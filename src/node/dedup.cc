#include "node/dedup.h"

#include "base/hash.h"

namespace mooncake::node {

DedupTable::Shard& DedupTable::ShardOf(const std::string& origin) {
  return shards_[base::Hash64(origin) % kShards];
}

DedupTable::Origin& DedupTable::OriginLocked(Shard& shard, const std::string& name) {
  auto [found, fresh] = shard.origins.try_emplace(name);
  Origin& origin = found->second;
  if (fresh) {
    if (shard.origins.size() > kOriginsMax) {
      shard.origins.erase(shard.recent.back());
      shard.recent.pop_back();
    }
    shard.recent.push_front(name);
    origin.recency = shard.recent.begin();
  } else if (origin.recency != shard.recent.begin()) {
    shard.recent.splice(shard.recent.begin(), shard.recent, origin.recency);
  }
  return origin;
}

DedupTable::Verdict DedupTable::Begin(const std::string& origin, uint64_t sequence,
                                      std::string* reply) {
  if (sequence == 0) return Verdict::kNew;
  Shard& shard = ShardOf(origin);
  base::MutexLock lock(shard.mu);
  Origin& entry = OriginLocked(shard, origin);
  auto [found, fresh] = entry.outcomes.try_emplace(sequence);
  if (fresh) return Verdict::kNew;
  if (!found->second.done) return Verdict::kRunning;
  *reply = found->second.reply;
  return Verdict::kDone;
}

void DedupTable::Finish(const std::string& origin, uint64_t sequence, const std::string& reply) {
  if (sequence == 0) return;
  Shard& shard = ShardOf(origin);
  base::MutexLock lock(shard.mu);
  Origin& entry = OriginLocked(shard, origin);
  Outcome& outcome = entry.outcomes[sequence];
  if (outcome.done) return;
  outcome.done = true;
  outcome.reply = reply;
  entry.finished.push_back(sequence);
  if (entry.finished.size() > kPerOrigin) {
    entry.outcomes.erase(entry.finished.front());
    entry.finished.pop_front();
  }
}

void DedupTable::Abandon(const std::string& origin, uint64_t sequence) {
  if (sequence == 0) return;
  Shard& shard = ShardOf(origin);
  base::MutexLock lock(shard.mu);
  auto found = shard.origins.find(origin);
  if (found == shard.origins.end()) return;
  auto outcome = found->second.outcomes.find(sequence);
  if (outcome != found->second.outcomes.end() && !outcome->second.done) {
    found->second.outcomes.erase(outcome);
  }
}

}  // namespace mooncake::node

// DedupTable: recognises a request that changes something and comes twice, because its reply
// was lost. The first outcome is kept for a while and returned again; the request is not
// applied a second time. Bounded: kPerOrigin outcomes for each of kOriginsMax askers, oldest
// first out. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"

namespace mooncake::node {

class DedupTable {
 public:
  enum class Verdict {
    kNew,      // Serve it, then call Finish (or Abandon).
    kDone,     // Served before; `reply` is filled.
    kRunning,  // The first copy is still being served.
  };
  // Sequence 0 is always kNew and never remembered.
  Verdict Begin(const std::string& origin, uint64_t sequence, std::string* reply);
  void Finish(const std::string& origin, uint64_t sequence, const std::string& reply);
  void Abandon(const std::string& origin, uint64_t sequence);

 private:
  static constexpr size_t kShards = 16;
  static constexpr size_t kPerOrigin = 256;
  static constexpr size_t kOriginsMax = 256;  // Per shard.
  struct Outcome {
    bool done = false;
    std::string reply;
  };
  struct Origin {
    std::unordered_map<uint64_t, Outcome> outcomes;
    std::deque<uint64_t> finished;  // Oldest first.
    std::list<std::string>::iterator recency;
  };
  struct Shard {
    base::Mutex mu;
    std::unordered_map<std::string, Origin> origins MC_GUARDED_BY(mu);
    std::list<std::string> recent MC_GUARDED_BY(mu);  // Most recent first.
  };
  Shard& ShardOf(const std::string& origin);
  static Origin& OriginLocked(Shard& shard, const std::string& name) MC_REQUIRES(shard.mu);

  Shard shards_[kShards];
};

}  // namespace mooncake::node

// The connections of one process to one Redis server. Each is used by one thread at a time, and
// an idle one that died costs a new one, never a failed call.
//
// Thread-safe. Threads do not wait for each other: a caller that finds no idle connection opens
// one, and a few are kept afterwards.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "metadata/redis/redis_connection.h"

namespace mooncake::metadata {

class RedisPool {
 public:
  RedisPool(RedisAddress address, RedisTimeouts timeouts, Runtime& runtime);

  // Runs the script with one key, retrying on another connection when one breaks. The script may
  // thus run twice: it has to know its own repetition. kMetadata: no server, no answer, or the
  // server's error, named. kInvalidState: the process is a fork of the one that made the pool.
  Result<std::vector<std::string>> RunScript(const std::string& key,
                                             const std::vector<std::string>& arguments);

  // As MetadataStore::Denies.
  bool denied() const { return denied_.load(std::memory_order_relaxed); }
  // As MetadataStore::EndBy.
  void EndBy(uint64_t deadline_ms) { end_by_ms_.store(deadline_ms, std::memory_order_relaxed); }

 private:
  // One try. `again`: it failed in a way that a new connection may not.
  Result<RedisAnswer> Try(const std::string& key, const std::vector<std::string>& arguments,
                          bool& again);
  std::unique_ptr<RedisConnection> TakeIdle();  // Null: there is none.
  void GiveBack(std::unique_ptr<RedisConnection> connection);
  Result<RedisAnswer> Evaluate(RedisConnection& connection, const std::string& key,
                               const std::vector<std::string>& arguments);
  Result<std::string> ScriptHash(RedisConnection& connection);

  const RedisAddress address_;
  const RedisTimeouts timeouts_;
  Runtime& runtime_;
  const pid_t pid_;
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};
  std::atomic<bool> denied_{false};
  base::Mutex mu_;
  std::vector<std::unique_ptr<RedisConnection>> idle_ MC_GUARDED_BY(mu_);
  std::string script_hash_ MC_GUARDED_BY(mu_);  // As the server names it; empty: not asked yet.
};

}  // namespace mooncake::metadata

// MigrationQueue: migrations as tasks, for whoever administers a cluster. A task waits for its
// turn, has its executor carry the order out, is tried again where that may help, and ends
// succeeded, failed or cancelled; a task whose executor was lost is judged by the key's route.
// The queue lives in memory: tasks end with it, and what they have moved stays moved.
//
// Thread-safe. Outlived by its Core.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "node/core.h"
#include "node/migration.h"

namespace mooncake::node {

enum class MigrationState : uint8_t {
  kPending,      // Not begun.
  kDispatching,  // Its executor is being asked.
  kRunning,      // Its executor works on it.
  kRetryWait,    // The last attempt failed; the next is due at next_retry_at_ms.
  kSucceeded,
  kFailed,  // last_error says why.
  kCancelled,
};
std::string_view MigrationStateName(MigrationState state);  // "retry_wait".

struct MigrationTask {
  std::string id;  // "route-migration-<n>"
  MigrationOrder order;
  std::string executor;  // As asked for; empty: the source replica's owner, anew at each attempt.
  MigrationState state = MigrationState::kPending;
  uint32_t attempts = 0;
  uint32_t max_retries = 0;  // After the first attempt.
  std::string execution_id;  // Of the attempt: "<executor>/<number>".
  Error last_error;
  // Wall clock; next_retry_at_ms is 0 unless it waits for a retry.
  uint64_t next_retry_at_ms = 0;
  uint64_t created_at_ms = 0;
  uint64_t updated_at_ms = 0;
};

struct MigrationQueueOptions {
  uint32_t max_retries = 5;
  uint64_t retry_base_delay_ms = 3'000;  // Doubles with each retry,
  uint64_t retry_max_delay_ms = 30'000;  // up to this.
  uint64_t poll_interval_ms = 100;       // Of an executor at work.
  uint64_t attempt_timeout_ms = 65'000;
  size_t tasks_max = 10'000;  // Finished ones make room for new ones.
};

class MigrationQueue {
 public:
  MigrationQueue(Core& core, const MigrationQueueOptions& options);
  ~MigrationQueue();  // Waits for the question in progress to another node, if there is one.

  // kInvalidArgument: the order's form. kBackPressure: tasks_max unfinished tasks.
  Result<MigrationTask> Submit(MigrationOrder order, std::string executor = {},
                               std::optional<uint32_t> max_retries = std::nullopt);
  Result<MigrationTask> Get(const std::string& id) const;  // kNotFound.
  std::vector<MigrationTask> List() const;                 // Oldest first.
  // kInvalidState: being carried out, or finished.
  Status Cancel(const std::string& id);

 private:
  using Tasks = std::map<uint64_t, MigrationTask>;
  void Loop();
  // The task that is due; else 0, and when to look again.
  uint64_t TakeDue(uint64_t* next_ms);
  void Attempt(uint64_t number);
  Status RunOn(uint64_t number, const MigrationTask& task, uint64_t deadline_ms);
  // An executor that was asked: another node, or this one's worker.
  using Ask = std::function<Result<v1::MigrateReply>(const v1::MigrateRequest&)>;
  Status AwaitExecution(const Ask& ask, uint64_t execution, uint64_t deadline_ms);
  void Conclude(uint64_t number, const Status& status);
  template <typename Change>
  void Update(uint64_t number, const Change& change);
  Tasks::const_iterator Find(const std::string& id) const MC_REQUIRES(mu_);
  bool MakeRoom() MC_REQUIRES(mu_);

  Core& core_;
  const MigrationQueueOptions options_;
  std::atomic<bool> stop_{false};
  std::unique_ptr<Event> work_;
  mutable base::Mutex mu_;
  uint64_t next_number_ MC_GUARDED_BY(mu_) = 1;
  Tasks tasks_ MC_GUARDED_BY(mu_);
  std::map<uint64_t, uint64_t> due_ms_ MC_GUARDED_BY(mu_);  // Of those that wait; monotonic.
  std::unique_ptr<Thread> thread_;
};

}  // namespace mooncake::node

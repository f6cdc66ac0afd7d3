// MigrationWorker: the executor's side of migrations. Takes orders from peers, carries them out
// one after the other on a thread of its own, and tells how they went. Asked by polling, as an
// order may take longer than a peer may be silent. Thread-safe.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "node/core.h"
#include "node/migration.h"

namespace mooncake::node {

class MigrationWorker {
 public:
  struct Execution {
    bool finished = false;
    Status status;  // Once it has finished.
  };

  explicit MigrationWorker(Runtime& runtime);
  ~MigrationWorker();
  void Start(Core& core) { core_ = &core; }
  // No order is begun from now on; the one in progress ends with its calls (Peers::EndBy).
  void Stop();

  // The execution's number, never 0. kBackPressure: kWaitingMax orders wait.
  Result<uint64_t> Submit(MigrationOrder order, uint64_t deadline_ms);
  // kNotFound: never submitted here, or finished long ago.
  Result<Execution> Get(uint64_t id) const;

 private:
  static constexpr size_t kWaitingMax = 1024;
  static constexpr size_t kFinishedMax = 1024;  // The newest are remembered.
  struct Job {
    uint64_t id = 0;
    MigrationOrder order;
    uint64_t deadline_ms = 0;
  };
  void Loop();
  bool Take(Job* job);
  void Finish(uint64_t id, Status status);

  Runtime& runtime_;
  Core* core_ = nullptr;  // Constant after Start.
  std::unique_ptr<Event> work_;
  mutable base::Mutex mu_;
  bool stopped_ MC_GUARDED_BY(mu_) = false;
  uint64_t next_id_ MC_GUARDED_BY(mu_) = 1;
  std::deque<Job> waiting_ MC_GUARDED_BY(mu_);
  std::map<uint64_t, Execution> executions_ MC_GUARDED_BY(mu_);
  std::deque<uint64_t> finished_ MC_GUARDED_BY(mu_);
  std::unique_ptr<Thread> thread_ MC_GUARDED_BY(mu_);  // From the first order on.
};

}  // namespace mooncake::node

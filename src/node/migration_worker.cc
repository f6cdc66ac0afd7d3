#include "node/migration_worker.h"

#include <fmt/format.h>

#include <utility>

namespace mooncake::node {

namespace {
constexpr uint64_t kIdleMs = 3'600'000;
}  // namespace

MigrationWorker::MigrationWorker(Runtime& runtime) : runtime_(runtime), work_(runtime.NewEvent()) {}

MigrationWorker::~MigrationWorker() { Stop(); }

void MigrationWorker::Stop() {
  std::unique_ptr<Thread> thread;
  {
    base::MutexLock lock(mu_);
    stopped_ = true;
    thread = std::move(thread_);
  }
  work_->Set();
  if (thread) thread->Join();
}

Result<uint64_t> MigrationWorker::Submit(MigrationOrder order, uint64_t deadline_ms) {
  MC_RETURN_IF_ERROR(CheckOrder(order));
  uint64_t id = 0;
  bool first = false;
  {
    base::MutexLock lock(mu_);
    if (stopped_) return InvalidState("this node is closing");
    if (waiting_.size() >= kWaitingMax) {
      return BackPressure(fmt::format("{} migrations wait already", waiting_.size()));
    }
    id = next_id_++;
    first = id == 1;
    executions_.emplace(id, Execution{});
    waiting_.push_back({id, std::move(order), deadline_ms});
  }
  work_->Set();
  if (first) {
    auto thread = runtime_.Spawn("mc-migrate", [this] { Loop(); });
    base::MutexLock lock(mu_);
    thread_ = std::move(thread);
  }
  return id;
}

Result<MigrationWorker::Execution> MigrationWorker::Get(uint64_t id) const {
  base::MutexLock lock(mu_);
  const auto found = executions_.find(id);
  if (found == executions_.end()) return NotFound(fmt::format("no migration {} here", id));
  return found->second;
}

bool MigrationWorker::Take(Job* job) {
  base::MutexLock lock(mu_);
  if (waiting_.empty()) return false;
  *job = std::move(waiting_.front());
  waiting_.pop_front();
  return true;
}

void MigrationWorker::Finish(uint64_t id, Status status) {
  base::MutexLock lock(mu_);
  executions_[id] = {true, std::move(status)};
  finished_.push_back(id);
  if (finished_.size() <= kFinishedMax) return;
  executions_.erase(finished_.front());
  finished_.pop_front();
}

void MigrationWorker::Loop() {
  while (true) {
    work_->Clear();
    {
      base::MutexLock lock(mu_);
      if (stopped_) return;
    }
    Job job;
    if (!Take(&job)) {
      work_->WaitUntil(runtime_.NowMs() + kIdleMs);
      continue;
    }
    Finish(job.id, Migrate(*core_, job.order, job.deadline_ms));
  }
}

}  // namespace mooncake::node

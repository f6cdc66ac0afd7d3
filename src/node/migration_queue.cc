#include "node/migration_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "node/control_calls.h"

namespace mooncake::node {

namespace {

constexpr uint64_t kIdleMs = 3'600'000;

bool IsFinished(MigrationState state) {
  return state == MigrationState::kSucceeded || state == MigrationState::kFailed ||
         state == MigrationState::kCancelled;
}

// Whether the same order could go better a second time.
bool MayHelp(ErrorCode code) {
  return code != ErrorCode::kInvalidArgument && code != ErrorCode::kUnsupported &&
         code != ErrorCode::kNotFound;
}

v1::MigrateRequest RequestOf(const MigrationOrder& order, uint64_t limit_ms) {
  v1::MigrateRequest request;
  WriteScope(order.scope, request.mutable_scope());
  request.set_key(order.key);
  request.set_move(order.move);
  request.set_source_segment(order.source_segment);
  for (const std::string& target : order.target_segments) request.add_target_segments(target);
  request.set_limit_ms(limit_ms);
  return request;
}

}  // namespace

std::string_view MigrationStateName(MigrationState state) {
  switch (state) {
    case MigrationState::kPending: return "pending";
    case MigrationState::kDispatching: return "dispatching";
    case MigrationState::kRunning: return "running";
    case MigrationState::kRetryWait: return "retry_wait";
    case MigrationState::kSucceeded: return "succeeded";
    case MigrationState::kFailed: return "failed";
    case MigrationState::kCancelled: return "cancelled";
  }
  return "unknown";
}

MigrationQueue::MigrationQueue(Core& core, const MigrationQueueOptions& options)
    : core_(core), options_(options), work_(core.runtime.NewEvent()) {
  thread_ = core.runtime.Spawn("mc-migrations", [this] { Loop(); });
}

MigrationQueue::~MigrationQueue() {
  stop_.store(true);
  work_->Set();
  thread_->Join();
}

Result<MigrationTask> MigrationQueue::Submit(MigrationOrder order, std::string executor,
                                             std::optional<uint32_t> max_retries) {
  MC_RETURN_IF_ERROR(CheckOrder(order));
  MigrationTask task;
  task.order = std::move(order);
  task.executor = std::move(executor);
  task.max_retries = max_retries.value_or(options_.max_retries);
  task.created_at_ms = task.updated_at_ms = core_.runtime.WallMs();
  {
    base::MutexLock lock(mu_);
    if (!MakeRoom()) {
      return BackPressure(fmt::format("{} migrations are unfinished", tasks_.size()));
    }
    const uint64_t number = next_number_++;
    task.id = fmt::format("route-migration-{}", number);
    due_ms_[number] = 0;
    tasks_.emplace(number, task);
  }
  work_->Set();
  return task;
}

bool MigrationQueue::MakeRoom() {
  if (tasks_.size() < options_.tasks_max) return true;
  const auto finished = std::find_if(
      tasks_.begin(), tasks_.end(), [](const auto& task) { return IsFinished(task.second.state); });
  if (finished == tasks_.end()) return false;
  tasks_.erase(finished);
  return true;
}

MigrationQueue::Tasks::const_iterator MigrationQueue::Find(const std::string& id) const {
  return std::find_if(tasks_.begin(), tasks_.end(),
                      [&](const auto& task) { return task.second.id == id; });
}

Result<MigrationTask> MigrationQueue::Get(const std::string& id) const {
  base::MutexLock lock(mu_);
  const auto found = Find(id);
  if (found == tasks_.end()) return NotFound(fmt::format("no migration task '{}'", id));
  return found->second;
}

std::vector<MigrationTask> MigrationQueue::List() const {
  base::MutexLock lock(mu_);
  std::vector<MigrationTask> all;
  all.reserve(tasks_.size());
  for (const auto& [number, task] : tasks_) all.push_back(task);
  return all;
}

Status MigrationQueue::Cancel(const std::string& id) {
  base::MutexLock lock(mu_);
  const auto found = Find(id);
  if (found == tasks_.end()) return NotFound(fmt::format("no migration task '{}'", id));
  const uint64_t number = found->first;
  if (due_ms_.erase(number) == 0) {
    return InvalidState(
        fmt::format("migration task '{}' is {}", id, MigrationStateName(found->second.state)));
  }
  MigrationTask& task = tasks_[number];
  task.state = MigrationState::kCancelled;
  task.next_retry_at_ms = 0;
  task.updated_at_ms = core_.runtime.WallMs();
  return Ok();
}

template <typename Change>
void MigrationQueue::Update(uint64_t number, const Change& change) {
  const uint64_t now_ms = core_.runtime.WallMs();
  base::MutexLock lock(mu_);
  MigrationTask& task = tasks_[number];
  change(task);
  task.updated_at_ms = now_ms;
}

uint64_t MigrationQueue::TakeDue(uint64_t* next_ms) {
  const uint64_t now_ms = core_.runtime.NowMs();
  *next_ms = now_ms + kIdleMs;
  base::MutexLock lock(mu_);
  for (const auto& [number, due_ms] : due_ms_) {
    if (due_ms <= now_ms) {
      const uint64_t taken = number;
      due_ms_.erase(taken);
      return taken;
    }
    *next_ms = std::min(*next_ms, due_ms);
  }
  return 0;
}

void MigrationQueue::Loop() {
  while (!stop_.load()) {
    work_->Clear();
    uint64_t next_ms = 0;
    if (const uint64_t number = TakeDue(&next_ms)) {
      Attempt(number);
    } else if (!stop_.load()) {
      work_->WaitUntil(next_ms);
    }
  }
}

void MigrationQueue::Attempt(uint64_t number) {
  MigrationTask task;
  Update(number, [&](MigrationTask& stored) {
    stored.state = MigrationState::kDispatching;
    stored.next_retry_at_ms = 0;
    ++stored.attempts;
    task = stored;
  });
  const uint64_t deadline_ms = core_.runtime.NowMs() + options_.attempt_timeout_ms;
  Status status = RunOn(number, task, deadline_ms);
  if (status.code() == ErrorCode::kTransport && !stop_.load()) {
    // Nobody can tell how it went. The route can.
    const uint64_t judge_ms = core_.runtime.NowMs() + core_.options.stall_timeout_ms;
    const Result<bool> migrated = IsMigrated(core_, task.order, judge_ms);
    if (migrated.ok() && *migrated) status = Ok();
  }
  Conclude(number, status);
}

Status MigrationQueue::RunOn(uint64_t number, const MigrationTask& task, uint64_t deadline_ms) {
  std::string name = task.executor;
  if (name.empty()) {
    MC_TRY(name, SourceOwner(core_, task.order, deadline_ms));
  }
  const ViewPtr view = core_.view();
  const routing::NodeIndex index = view->FindName(name);
  if (index == routing::kNoNode || !view->node(index).readable) {
    return TransportError(fmt::format("executor '{}': not alive", name));
  }
  const routing::ViewNode& node = view->node(index);
  if (node.lease.protocol_minor < kMinorWithMigration) {
    return Unsupported(fmt::format("executor '{}': its version knows no migrations", name));
  }
  const bool here = node.lease.id == core_.membership.self();
  const Ask ask = [&](const v1::MigrateRequest& request) -> Result<v1::MigrateReply> {
    if (!here) {
      return core_.peers.Ask<v1::MigrateReply>(node, MessageType::kMigrate, request, deadline_ms);
    }
    v1::MigrateReply reply;
    bool valid = true;
    ServeMigrate(core_, request, &reply, &valid);
    return reply;
  };
  v1::MigrateRequest request = RequestOf(task.order, options_.attempt_timeout_ms);
  core_.peers.FillOrigin(true, request.mutable_origin());
  MC_TRY(const v1::MigrateReply reply, ask(request));
  if (reply.code() != kItemOk) return Error{ErrorCodeOf(reply.code()), reply.reason()};
  if (reply.execution() == 0) return TransportError(fmt::format("executor '{}': busy", name));
  Update(number, [&](MigrationTask& stored) {
    stored.state = MigrationState::kRunning;
    stored.execution_id = fmt::format("{}/{}", node.lease.id.ToString(), reply.execution());
  });
  return AwaitExecution(ask, reply.execution(), deadline_ms);
}

Status MigrationQueue::AwaitExecution(const Ask& ask, uint64_t execution, uint64_t deadline_ms) {
  v1::MigrateRequest request;
  request.set_execution(execution);
  core_.peers.FillOrigin(false, request.mutable_origin());
  while (!stop_.load() && core_.runtime.NowMs() < deadline_ms) {
    core_.runtime.SleepMs(options_.poll_interval_ms);
    MC_TRY(const v1::MigrateReply reply, ask(request));
    if (!reply.finished() && reply.code() == kItemOk) continue;
    if (reply.code() == kItemOk) return Ok();
    // An execution that its executor no longer knows tells nothing about the key.
    if (!reply.finished()) return TransportError(reply.reason());
    return Error{ErrorCodeOf(reply.code()), reply.reason()};
  }
  return TransportError("the executor did not finish in time");
}

void MigrationQueue::Conclude(uint64_t number, const Status& status) {
  const uint64_t now_ms = core_.runtime.NowMs();
  const uint64_t wall_ms = core_.runtime.WallMs();
  base::MutexLock lock(mu_);
  MigrationTask& task = tasks_[number];
  task.updated_at_ms = wall_ms;
  if (status.ok()) {
    task.state = MigrationState::kSucceeded;
    task.last_error = {};
    return;
  }
  task.last_error = status.error();
  if (task.attempts > task.max_retries || !MayHelp(status.code())) {
    task.state = MigrationState::kFailed;
    return;
  }
  const uint32_t doublings = std::min<uint32_t>(task.attempts - 1, 20);
  const uint64_t delay_ms =
      std::min(options_.retry_base_delay_ms << doublings, options_.retry_max_delay_ms);
  task.state = MigrationState::kRetryWait;
  task.next_retry_at_ms = wall_ms + delay_ms;
  due_ms_[number] = now_ms + delay_ms;
}

}  // namespace mooncake::node

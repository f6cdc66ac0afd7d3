#include "transfer/tcp/worker_pool.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>

#include "transfer/tcp/event_loop.h"

namespace mooncake::transfer {

Status WorkerPool::Start(Runtime& runtime, uint32_t threads) {
  queued_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!queued_.valid()) return TransportError(fmt::format("no workers: {}", ErrnoText(errno)));
  for (uint32_t i = 0; i < threads; ++i) {
    threads_.push_back(runtime.Spawn("mc-tcp-work", [this] { Work(); }));
  }
  return Ok();
}

void WorkerPool::Submit(EventLoop* loop, ServerConnection* connection) {
  {
    base::MutexLock lock(mu_);
    jobs_.push_back({loop, connection});
  }
  const uint64_t one = 1;
  (void)!::write(queued_.get(), &one, sizeof one);
}

bool WorkerPool::Next(Job& job) {
  uint64_t count;
  while (::read(queued_.get(), &count, sizeof count) < 0) {
    if (errno != EINTR) return false;
  }
  base::MutexLock lock(mu_);
  if (stopped_ || jobs_.empty()) return false;
  job = jobs_.front();
  jobs_.pop_front();
  return true;
}

void WorkerPool::Work() {
  Job job;
  while (Next(job)) {
    job.connection->RunBlocking();
    job.loop->Return(job.connection);
  }
}

void WorkerPool::Stop() {
  {
    base::MutexLock lock(mu_);
    stopped_ = true;
    jobs_.clear();
  }
  const uint64_t all = threads_.size();
  if (all > 0) (void)!::write(queued_.get(), &all, sizeof all);
  for (auto& thread : threads_) thread->Join();
  threads_.clear();
}

}  // namespace mooncake::transfer

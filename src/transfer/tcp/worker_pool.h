// WorkerPool: the threads that run what may block. A connection is queued at most once and is
// not read meanwhile, so the queue is bounded by the number of connections, and a peer that
// sends more than the workers can do is slowed down by its own socket. Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "runtime/runtime.h"
#include "transfer/tcp/socket.h"

namespace mooncake::transfer {

class EventLoop;
class ServerConnection;

class WorkerPool {
 public:
  ~WorkerPool() { Stop(); }
  Status Start(Runtime& runtime, uint32_t threads);
  // A worker runs the connection's blocking part and returns it to the loop.
  void Submit(EventLoop* loop, ServerConnection* connection);
  // Drops what is queued and waits for what runs. Idempotent.
  void Stop();

 private:
  struct Job {
    EventLoop* loop = nullptr;
    ServerConnection* connection = nullptr;
  };

  void Work();
  bool Next(Job& job);

  UniqueFd queued_;  // A semaphore: one count per job, and one per worker to stop.
  std::vector<std::unique_ptr<Thread>> threads_;
  base::Mutex mu_;
  std::deque<Job> jobs_ MC_GUARDED_BY(mu_);
  bool stopped_ MC_GUARDED_BY(mu_) = false;
};

}  // namespace mooncake::transfer

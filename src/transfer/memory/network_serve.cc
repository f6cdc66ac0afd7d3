// The serving half of NetworkState: requests under way and the peers' calls.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transfer/memory/network_state.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kPauseLookMs = 50;

}  // namespace

bool NetworkState::Begin(const std::shared_ptr<Delivery>& delivery) {
  base::MutexLock lock(mu_);
  if (delivery->revoked) return false;
  if (delivery->service == nullptr) {
    auto it = nodes_.find(delivery->to);
    if (it == nodes_.end()) return false;
    delivery->service = it->second.service;
    it->second.deliveries.insert(delivery);
  }
  delivery->in_use = true;
  return true;
}

void NetworkState::End(const std::shared_ptr<Delivery>& delivery) {
  {
    base::MutexLock lock(mu_);
    if (!delivery->revoked) {
      delivery->in_use = false;
      return;
    }
  }
  delivery->call.reset();  // RemoveNode waits for it.
  base::MutexLock lock(mu_);
  delivery->in_use = false;
}

void NetworkState::Leave(const std::shared_ptr<Delivery>& delivery) {
  {
    base::MutexLock lock(mu_);
    if (--delivery->parties > 0) return;
    delivery->in_use = true;  // RemoveNode waits until the call is destroyed.
  }
  delivery->call.reset();
  base::MutexLock lock(mu_);
  delivery->in_use = false;
  auto it = nodes_.find(delivery->to);
  if (it != nodes_.end()) it->second.deliveries.erase(delivery);
}

bool NetworkState::Revoked(const Delivery& delivery) {
  base::MutexLock lock(mu_);
  return delivery.revoked;
}

bool NetworkState::Serve(Delivery& delivery, bool may_block) {
  using Stage = Delivery::Stage;
  if (delivery.stage == Stage::kAccept) {
    IncomingRequest request;
    request.type = delivery.type;
    request.message = delivery.message;
    request.payload_size = delivery.payload.size();
    request.deadline_ms = delivery.deadline_ms;
    delivery.call = delivery.service->Accept(request);
    delivery.stage = delivery.call ? Stage::kPrepare : Stage::kFailed;
  }
  if (delivery.stage == Stage::kPrepare) {
    if (!delivery.call->Prepare(may_block)) return false;
    delivery.stage = ServePayload(delivery) ? Stage::kRun : Stage::kFailed;
  }
  if (delivery.stage == Stage::kRun) {
    if (!delivery.call->Run(may_block, delivery.reply)) return false;
    delivery.stage = Stage::kServed;
  }
  return true;
}

bool NetworkState::ServePayload(Delivery& delivery) {
  const std::span<const MutableBytes> targets = delivery.call->PayloadTargets();
  if (TotalSize(targets) != delivery.payload.size()) return false;
  uint64_t done = 0;
  for (const MutableBytes& target : targets) {
    if (target.data() != nullptr) {
      const bool whole = InSteps(target.size(), [&](uint64_t offset, uint64_t size) {
        std::memcpy(target.data() + offset, delivery.payload.data() + done + offset, size);
        return !Revoked(delivery);
      });
      if (!whole) return false;
    }
    done += target.size();
  }
  return true;
}

void NetworkState::ServeOnThread(const std::shared_ptr<Delivery>& delivery, uint64_t delay_ms) {
  if (delay_ms > 0) runtime.SleepMs(delay_ms);
  // A paused node is resumed or goes away; the network's end heals it.
  while (LinkBetween(delivery->from, delivery->to) == Link::kPaused) {
    runtime.SleepMs(kPauseLookMs);
  }
  if (!Begin(delivery)) {
    delivery->stage = Delivery::Stage::kFailed;
    return;
  }
  Serve(*delivery, true);
  End(delivery);
}

void NetworkState::ServeLater(const std::shared_ptr<Delivery>& delivery, uint64_t delay_ms,
                              const std::shared_ptr<Event>& event) {
  {
    base::MutexLock lock(mu_);
    ++delivery->parties;
  }
  auto done = std::make_shared<std::atomic<bool>>(false);
  auto thread = runtime.Spawn("mc-mem-serve", [this, delivery, delay_ms, event, done] {
    ServeOnThread(delivery, delay_ms);
    Leave(delivery);
    delivery->finished.store(true, std::memory_order_release);
    if (event) event->Set();
    done->store(true, std::memory_order_release);
  });
  KeepWorker({std::move(thread), std::move(done)});
}

void NetworkState::KeepWorker(Worker worker) {
  std::vector<Worker> ended;  // Joined without the lock.
  base::MutexLock lock(mu_);
  for (auto it = workers_.begin(); it != workers_.end();) {
    if (it->done->load(std::memory_order_acquire)) {
      ended.push_back(std::move(*it));
      it = workers_.erase(it);
    } else {
      ++it;
    }
  }
  workers_.push_back(std::move(worker));
}

void NetworkState::WaitForThreads() {
  Heal();
  for (;;) {
    std::vector<Worker> workers;
    {
      base::MutexLock lock(mu_);
      std::swap(workers, workers_);
    }
    if (workers.empty()) return;
    for (Worker& worker : workers) worker.thread->Join();
  }
}

}  // namespace mooncake::transfer

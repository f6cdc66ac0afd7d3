// The scheduler's view of one sim thread, its event, and its handle. Internal to SimRuntime.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/baton.h"
#include "runtime/runtime.h"
#include "runtime/sim_runtime.h"

namespace mooncake::runtime {

inline constexpr uint64_t kNever = UINT64_MAX;

class SimThread {
 public:
  SimThread(uint64_t id, std::string name) : id(id), name(std::move(name)) {}

  const uint64_t id;
  const std::string name;
  Baton baton;
  std::thread os_thread;  // Not joinable for the main thread.

  const char* activity = "runnable";  // What it is doing, for Fail.
  uint64_t wake_ns = kNever;
  SimEvent* waits_on = nullptr;
  bool woken_by_event = false;
  bool ended = false;
  std::vector<SimThread*> joiners;
};

class SimEvent final : public Event {
 public:
  explicit SimEvent(SimRuntime& runtime) : runtime_(runtime) {}
  ~SimEvent() override;

  void Set() override;  // No switch point: it may be called with a lock held.
  void Clear() override { set_ = false; }
  bool WaitUntil(uint64_t deadline_ms) override;
  void RemoveWaiter(SimThread& thread);

 private:
  SimRuntime& runtime_;
  bool set_ = false;
  std::vector<SimThread*> waiters_;  // In the order of their arrival.
};

class SimThreadHandle final : public Thread {
 public:
  SimThreadHandle(SimRuntime& runtime, std::shared_ptr<SimThread> thread)
      : runtime_(runtime), thread_(std::move(thread)) {}
  ~SimThreadHandle() override { Join(); }
  void Join() override;

 private:
  SimRuntime& runtime_;
  std::shared_ptr<SimThread> thread_;
};

}  // namespace mooncake::runtime

// RealRuntime: the clock, the threads and the randomness of the operating system.
//
// Thread-safe. Stateless but for the interrupt check, so a process may have several.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/runtime.h"

namespace mooncake::runtime {

class RealRuntime final : public Runtime {
 public:
  uint64_t NowMs() override;
  uint64_t NowNs() override;
  uint64_t WallMs() override;
  void SleepMs(uint64_t ms) override;
  void Yield() override;
  // Per thread and never the same in a forked child as in its parent.
  uint64_t Random() override;
  std::unique_ptr<Event> NewEvent() override;
  std::unique_ptr<Thread> Spawn(std::string name, std::function<void()> body) override;
  bool Interrupted() override;

  // What Interrupted() answers; called on the thread that asks, without a lock. Empty: never.
  void SetInterruptCheck(std::function<bool()> check);

 private:
  std::mutex mu_;
  std::shared_ptr<const std::function<bool()>> interrupt_check_;
};

}  // namespace mooncake::runtime

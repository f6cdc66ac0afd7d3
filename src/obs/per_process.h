// PerProcess: one object for each process, never destroyed. A forked child gets its own: what it
// inherited may be locked for ever by a thread that exists in the parent only.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>

namespace mooncake::obs {

template <typename T>
class PerProcess {
 public:
  constexpr PerProcess() = default;

  T& Get() {
    Slot* slot = slot_.load();
    while (slot == nullptr || slot->pid != getpid()) {
      auto made = std::make_unique<Slot>();
      if (slot_.compare_exchange_strong(slot, made.get())) {
        if (slot != nullptr) slot->value.LeaveToParent();
        slot = made.release();
      }
    }
    return slot->value;
  }

 private:
  struct Slot {
    const pid_t pid = getpid();
    T value;
  };
  std::atomic<Slot*> slot_{nullptr};
};

}  // namespace mooncake::obs

// A Runtime whose clock only moves when a test says so, or when something sleeps or waits: a
// test of timeouts takes no time. Threads are real.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "base/hash.h"
#include "runtime/runtime.h"

namespace mooncake::testing {

class ManualRuntime final : public Runtime {
 public:
  explicit ManualRuntime(uint64_t now_ms = 1'000'000) : now_ms_(now_ms) {}

  void Advance(uint64_t ms) { now_ms_ += ms; }

  uint64_t NowMs() override { return now_ms_; }
  uint64_t NowNs() override { return now_ms_ * 1'000'000; }
  uint64_t WallMs() override { return now_ms_; }
  void SleepMs(uint64_t ms) override { Advance(ms); }
  void Yield() override { std::this_thread::yield(); }
  uint64_t Random() override { return base::Mix64(++drawn_); }

  std::unique_ptr<Event> NewEvent() override { return std::make_unique<ManualEvent>(*this); }
  std::unique_ptr<Thread> Spawn(std::string /*name*/, std::function<void()> body) override {
    return std::make_unique<ManualThread>(std::move(body));
  }

 private:
  // Waiting for what is not set moves the clock to the deadline.
  class ManualEvent final : public Event {
   public:
    explicit ManualEvent(ManualRuntime& runtime) : runtime_(runtime) {}
    void Set() override { set_ = true; }
    void Clear() override { set_ = false; }
    bool WaitUntil(uint64_t deadline_ms) override {
      const uint64_t now_ms = runtime_.NowMs();
      if (!set_ && now_ms < deadline_ms) runtime_.Advance(deadline_ms - now_ms);
      return set_;
    }

   private:
    ManualRuntime& runtime_;
    std::atomic<bool> set_ = false;
  };

  class ManualThread final : public Thread {
   public:
    explicit ManualThread(std::function<void()> body) : thread_(std::move(body)) {}
    ~ManualThread() override { Join(); }
    void Join() override {
      if (thread_.joinable()) thread_.join();
    }

   private:
    std::thread thread_;
  };

  std::atomic<uint64_t> now_ms_;
  std::atomic<uint64_t> drawn_ = 0;
};

}  // namespace mooncake::testing

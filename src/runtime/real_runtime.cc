#include "runtime/real_runtime.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "runtime/xoshiro.h"

namespace mooncake::runtime {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kThreadNameMax = 15;
// Later deadlines would overflow the clock's 63 bits of nanoseconds; they are waits for ever.
constexpr uint64_t kDeadlineMsMax = UINT64_C(1) << 42;

template <typename Unit>
uint64_t SteadyNow() {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<Unit>(SteadyClock::now().time_since_epoch()).count());
}

class RealEvent final : public Event {
 public:
  void Set() override {
    // Notified under the lock: a waiter may destroy the event as soon as it has returned.
    std::lock_guard lock(mu_);
    set_ = true;
    ++times_set_;
    changed_.notify_all();
  }

  void Clear() override {
    std::lock_guard lock(mu_);
    set_ = false;
  }

  bool WaitUntil(uint64_t deadline_ms) override {
    MC_CHECK(base::HeldLocks() == 0);
    std::unique_lock lock(mu_);
    // A Set that is cleared before this thread runs again still ends the wait.
    const uint64_t before = times_set_;
    const auto was_set = [&] { return set_ || times_set_ != before; };
    if (deadline_ms > kDeadlineMsMax) {
      changed_.wait(lock, was_set);
      return true;
    }
    const SteadyClock::time_point deadline{std::chrono::milliseconds(deadline_ms)};
    return changed_.wait_until(lock, deadline, was_set);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool set_ = false;
  uint64_t times_set_ = 0;
};

class RealThread final : public Thread {
 public:
  RealThread(std::string name, std::function<void()> body)
      : thread_([name = std::move(name), body = std::move(body)] {
          // From inside, so that the name is there before the body runs.
          pthread_setname_np(pthread_self(), name.substr(0, kThreadNameMax).c_str());
          body();
        }) {}
  ~RealThread() override { Join(); }

  void Join() override {
    MC_CHECK(base::HeldLocks() == 0);
    std::lock_guard lock(mu_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::mutex mu_;  // Join may come from two threads at once.
  std::thread thread_;
};

// Grows in every forked child, which then draws a new seed.
std::atomic<uint64_t> forks{0};

uint64_t OsSeed() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { ++forks; });
  MC_CHECK(registered == 0);
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

struct ThreadRandom {
  uint64_t forks_seen;
  Xoshiro generator;
};
thread_local std::optional<ThreadRandom> thread_random;

}  // namespace

uint64_t RealRuntime::NowMs() { return SteadyNow<std::chrono::milliseconds>(); }
uint64_t RealRuntime::NowNs() { return SteadyNow<std::chrono::nanoseconds>(); }

uint64_t RealRuntime::WallMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

void RealRuntime::SleepMs(uint64_t ms) {
  MC_CHECK(base::HeldLocks() == 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

void RealRuntime::Yield() { std::this_thread::yield(); }

uint64_t RealRuntime::Random() {
  const uint64_t forks_now = forks.load(std::memory_order_relaxed);
  if (!thread_random || thread_random->forks_seen != forks_now) [[unlikely]] {
    thread_random.emplace(ThreadRandom{forks_now, Xoshiro(OsSeed())});
  }
  return thread_random->generator.Next();
}

std::unique_ptr<Event> RealRuntime::NewEvent() { return std::make_unique<RealEvent>(); }

std::unique_ptr<Thread> RealRuntime::Spawn(std::string name, std::function<void()> body) {
  return std::make_unique<RealThread>(std::move(name), std::move(body));
}

bool RealRuntime::Interrupted() {
  std::shared_ptr<const std::function<bool()>> check;
  {
    std::lock_guard lock(mu_);
    check = interrupt_check_;
  }
  return check && (*check)();
}

void RealRuntime::SetInterruptCheck(std::function<bool()> check) {
  std::shared_ptr<const std::function<bool()>> shared;
  if (check) shared = std::make_shared<const std::function<bool()>>(std::move(check));
  std::lock_guard lock(mu_);
  interrupt_check_ = std::move(shared);
}

}  // namespace mooncake::runtime

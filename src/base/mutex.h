// Mutex: a std::mutex with clang thread-safety annotations that also counts, in debug builds,
// the locks that the calling thread holds, so that ports can check that none is (ports.h).
#pragma once

#include <mutex>

#if defined(__clang__)
#define MC_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MC_THREAD_ATTRIBUTE(x)
#endif
#define MC_CAPABILITY(x) MC_THREAD_ATTRIBUTE(capability(x))
#define MC_SCOPED_CAPABILITY MC_THREAD_ATTRIBUTE(scoped_lockable)
#define MC_GUARDED_BY(x) MC_THREAD_ATTRIBUTE(guarded_by(x))
#define MC_REQUIRES(...) MC_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MC_ACQUIRE(...) MC_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MC_RELEASE(...) MC_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define MC_EXCLUDES(...) MC_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace mooncake::base {

// The number of Mutexes that the calling thread holds. Always 0 in release builds.
int HeldLocks();
void CountHeldLock(int delta);

class MC_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void Lock() MC_ACQUIRE() {
    mu_.lock();
#ifndef NDEBUG
    CountHeldLock(1);
#endif
  }
  void Unlock() MC_RELEASE() {
#ifndef NDEBUG
    CountHeldLock(-1);
#endif
    mu_.unlock();
  }

 private:
  std::mutex mu_;
};

class MC_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) MC_ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() MC_RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

}  // namespace mooncake::base

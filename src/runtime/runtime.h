// The clock, the threads, the waiting and the randomness of a node: everything about time and
// chance comes in through this port, so that a whole cluster runs under a seeded simulation.
//
// RealRuntime is the operating system. SimRuntime hands one baton from thread to thread in an
// order that a seed decides, and moves a virtual clock when all of them wait; code stays plain
// blocking code. What makes that sound: no lock is held while a thread sleeps, waits on an
// Event or calls a port (base::Mutex checks it in debug builds).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mooncake {

// Set once or many times, waited for by any number of threads. Starts unset.
class Event {
 public:
  virtual ~Event() = default;
  virtual void Set() = 0;
  virtual void Clear() = 0;
  // True: was set (it stays set). False: `deadline_ms` (Runtime::NowMs scale) passed first.
  virtual bool WaitUntil(uint64_t deadline_ms) = 0;
};

// Joined by destruction; the function must return by itself soon after it is told to stop.
class Thread {
 public:
  virtual ~Thread() = default;
  virtual void Join() = 0;  // Idempotent.
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Monotonic. Never goes back; starts anywhere.
  virtual uint64_t NowMs() = 0;
  virtual uint64_t NowNs() = 0;
  // Wall clock, for records that other machines read; may jump.
  virtual uint64_t WallMs() = 0;
  virtual void SleepMs(uint64_t ms) = 0;
  // Lets other threads run; in simulation, a point where the scheduler may switch.
  virtual void Yield() = 0;
  virtual uint64_t Random() = 0;  // Uniform 64 bits.

  virtual std::unique_ptr<Event> NewEvent() = 0;
  // `name` shows in debuggers (15 characters).
  virtual std::unique_ptr<Thread> Spawn(std::string name, std::function<void()> body) = 0;

  // Whether the process was asked to interrupt blocking calls of the calling thread (Python
  // sets this from its signal state). Long waits poll it and return kTransport when true.
  virtual bool Interrupted() { return false; }
};

}  // namespace mooncake

// Baton: one permit from one thread to another, as a futex. Cheaper than a condition variable,
// and a simulation passes it at each of its switch points.
#pragma once

#include <atomic>
#include <cstdint>

namespace mooncake::runtime {

class Baton {
 public:
  // Makes the permit available. Whatever was written before is seen by the taker. The object
  // may be gone as soon as the permit is taken.
  void Give();
  // Waits for the permit and consumes it. Only one thread may take.
  void Take();

 private:
  std::atomic<uint32_t> permit_{0};
};

}  // namespace mooncake::runtime

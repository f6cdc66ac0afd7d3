#include "runtime/baton.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace mooncake::runtime {
namespace {

// The kernel takes the address of the atomic's only member.
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

}  // namespace

void Baton::Give() {
  permit_.store(1, std::memory_order_release);
  // If the taker has run on and destroyed the baton, this wakes nobody: the kernel does not
  // read the memory.
  syscall(SYS_futex, &permit_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Baton::Take() {
  while (permit_.exchange(0, std::memory_order_acquire) == 0) {
    // Returns at once when the permit has come meanwhile; errors and spurious wake-ups only
    // make another round.
    syscall(SYS_futex, &permit_, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  }
}

}  // namespace mooncake::runtime

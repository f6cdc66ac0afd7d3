#include "base/mutex.h"

namespace mooncake::base {
namespace {

thread_local int held_locks = 0;

}  // namespace

int HeldLocks() { return held_locks; }
void CountHeldLock(int delta) { held_locks += delta; }

}  // namespace mooncake::base

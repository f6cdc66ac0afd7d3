#include "bench/cpus.h"

namespace mooncake::bench {

CpuSplit CpuSplit::OfThisProcess() {
  CpuSplit split;
  cpu_set_t allowed = {};
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) {
    split.clients_ = split.servers_ = allowed;
    return split;
  }
  int seen = 0;
  const int half = CPU_COUNT(&allowed) / 2;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    CPU_SET(cpu, seen++ < half ? &split.clients_ : &split.servers_);
  }
  return split;
}

}  // namespace mooncake::bench

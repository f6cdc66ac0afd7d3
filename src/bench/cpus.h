// Which processors the two sides of a run use. A round trip between threads on one processor takes
// a third of one between two, and the scheduler changes its mind from run to run: a call and the
// bare transfer beside it compare only when both always cross.
#pragma once

#include <sched.h>

namespace mooncake::bench {

class CpuSplit {
 public:
  // Halves of the processors that this process may use; with only one, both sides share it.
  static CpuSplit OfThisProcess();

  // Bind the calling thread, and with it every thread and process that it starts from now on.
  void BindToClients() const { ::sched_setaffinity(0, sizeof clients_, &clients_); }
  void BindToServers() const { ::sched_setaffinity(0, sizeof servers_, &servers_); }

 private:
  cpu_set_t clients_ = {};
  cpu_set_t servers_ = {};
};

}  // namespace mooncake::bench

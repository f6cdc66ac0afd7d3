// NodeGauges: what a node's parts look like at the moment: its lease, its peers, its segments.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "node/core.h"
#include "obs/metrics.h"

namespace mooncake::client {

class NodeGauges {
 public:
  NodeGauges(Metrics& metrics, node::Core& core);

  // Sets all of them. Thread-safe; waits for no port.
  void Refresh();

 private:
  void RefreshRuntime();
  void RefreshSegments();
  void RefreshCounts();
  void Set(const char* name, double value);

  Metrics& metrics_;
  node::Core& core_;
  const std::string name_;
  base::Mutex mu_;
  // By name and state, ever shown.
  std::set<std::pair<std::string, std::string>> segments_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::client

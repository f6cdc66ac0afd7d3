// SimClient: one thread of a simulated workload. Calls any live node, records every answer.
#pragma once

#include <string>
#include <vector>

#include "support/sim_cluster.h"

namespace mooncake::testing {

class SimClient {
 public:
  SimClient(SimCluster& cluster, uint64_t seed) : cluster_(cluster), random_(seed) {}
  // Until the cluster's clients are told to stop.
  void Run();

 private:
  void DoOne(SimNode& node);
  void Put(SimNode& node, const std::vector<std::string>& keys);
  void Get(SimNode& node, const std::vector<std::string>& keys);
  void Exist(SimNode& node, const std::vector<std::string>& keys);
  void Remove(SimNode& node, const std::vector<std::string>& keys);

  std::vector<std::string> PickKeys();
  uint64_t Pick(uint64_t count) { return random_.Next() % count; }
  std::vector<size_t> Begin(OpKind kind, const SimNode& node, const std::vector<std::string>& keys);
  void End(size_t number, const SimNode& node, const Error& error);

  SimCluster& cluster_;
  runtime::Xoshiro random_;
};

}  // namespace mooncake::testing

// Runs a scenario for many seeds. MC_SIM_SEEDS=N says how many, MC_SIM_SEED=S runs just one and
// twice over, MC_SIM_FIRST=S where to begin; the seeds of seeds.txt come on top.
#pragma once

#include <functional>

#include "support/sim_cluster.h"

namespace mooncake::testing {

struct Scenario {
  const char* name;
  int seeds;  // In a plain build; sanitizers get fewer.
  SimOptions options;
  std::function<void(SimCluster&)> body;
};

void RunScenario(const Scenario& scenario);

}  // namespace mooncake::testing

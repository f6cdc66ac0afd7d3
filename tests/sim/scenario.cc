#include "scenario.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace mooncake::testing {

namespace {

constexpr int kFailuresMax = 3;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 6;
#else
constexpr int kSlowdown = 1;
#endif

std::optional<uint64_t> Number(const char* name) {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return std::nullopt;
  return std::strtoull(text, nullptr, 10);
}

std::vector<uint64_t> SeedsOf(const Scenario& scenario) {
  std::vector<uint64_t> seeds;
  std::ifstream file(SIM_SEEDS_FILE);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t seed = 0;
    if (words >> name >> seed && name == scenario.name) seeds.push_back(seed);
  }
  const auto wanted = static_cast<uint64_t>(std::max(1, scenario.seeds / kSlowdown));
  const uint64_t count = Number("MC_SIM_SEEDS").value_or(wanted);
  const uint64_t first = Number("MC_SIM_FIRST").value_or(1);
  for (uint64_t seed = first; seed < first + count; ++seed) seeds.push_back(seed);
  return seeds;
}

SimReport RunSeed(const Scenario& scenario, uint64_t seed) {
  SimOptions options = scenario.options;
  options.seed = seed;
  SimReport report = RunSim(options, scenario.body);
  if (!report.problems.empty()) {
    ADD_FAILURE() << "scenario " << scenario.name << ", seed " << seed
                  << "; again: MC_SIM_SEED=" << seed << " sim_cluster --gtest_filter=*."
                  << scenario.name << "\n"
                  << report.problems;
  }
  return report;
}

}  // namespace

void RunScenario(const Scenario& scenario) {
  const std::optional<uint64_t> only = Number("MC_SIM_SEED");
  const std::vector<uint64_t> seeds = only ? std::vector<uint64_t>{*only} : SeedsOf(scenario);
  uint64_t operations = 0;
  int failures = 0;
  bool first = true;
  for (uint64_t seed : seeds) {
    const SimReport report = RunSeed(scenario, seed);
    operations += report.operations;
    failures += report.problems.empty() ? 0 : 1;
    if (failures >= kFailuresMax) break;
    if (std::exchange(first, false)) {
      EXPECT_EQ(RunSim(
                    [&] {
                      SimOptions options = scenario.options;
                      options.seed = seed;
                      return options;
                    }(),
                    scenario.body)
                    .trace_hash,
                report.trace_hash)
          << "scenario " << scenario.name << ", seed " << seed << " runs differently each time";
    }
  }
  ::testing::Test::RecordProperty("seeds", static_cast<int>(seeds.size()));
  ::testing::Test::RecordProperty("operations", std::to_string(operations));
}

}  // namespace mooncake::testing

// The JSON pages about a process: /stats, one row per operation and result, and /breakdown, with
// percentiles, phases and what costs most. docs/observability.md has their shapes.
#pragma once

#include <string>
#include <vector>

#include "obs/metrics.h"
#include "obs/process_usage.h"

namespace mooncake::obs {

// Of both pages. Grows when a field changes its meaning or goes.
inline constexpr int kPagesSchemaVersion = 1;

std::string StatsPage(const std::vector<MetricSample>& samples, const ProcessUsage& usage);
std::string BreakdownPage(const std::vector<MetricSample>& samples, const ProcessUsage& usage,
                          const std::string& tenant);

}  // namespace mooncake::obs

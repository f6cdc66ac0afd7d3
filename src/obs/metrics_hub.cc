#include "obs/metrics_hub.h"

#include <algorithm>
#include <utility>

#include "obs/per_process.h"

namespace mooncake::obs {

namespace {
constexpr size_t kTenantsShown = 4;
}  // namespace

MetricsHub::Source::Source(MetricsHub& hub, std::string tenant, Read read)
    : hub_(hub), tenant_(std::move(tenant)), read_(std::move(read)) {
  base::MutexLock lock(hub_.mu_);
  hub_.sources_.push_back(this);
}

MetricsHub::Source::~Source() {
  base::MutexLock lock(hub_.mu_);
  hub_.ended_.Merge(read_().Totals());
  hub_.sources_.remove(this);
}

MetricSet MetricsHub::Collect() {
  base::MutexLock lock(mu_);
  MetricSet all = ended_;
  for (const Source* source : sources_) all.Merge(source->read_());
  return all;
}

std::string MetricsHub::Tenant() {
  base::MutexLock lock(mu_);
  std::vector<std::string> tenants;
  for (const Source* source : sources_) {
    if (source->tenant_.empty()) continue;
    const bool known = std::find(tenants.begin(), tenants.end(), source->tenant_) != tenants.end();
    if (!known && tenants.size() < kTenantsShown) tenants.push_back(source->tenant_);
  }
  if (tenants.empty()) return "default";
  std::string joined;
  for (const std::string& tenant : tenants) joined += (joined.empty() ? "" : ",") + tenant;
  return joined;
}

std::string MetricsHub::Text() { return Collect().Text(Tenant()); }

MetricsHub& MetricsHub::OfProcess() {
  static constinit PerProcess<MetricsHub> hub;
  return hub.Get();
}

}  // namespace mooncake::obs

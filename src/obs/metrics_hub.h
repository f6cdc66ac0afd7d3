// MetricsHub: the metrics of all stores of a process as one set. What a store counted before it
// was closed stays in the sums, so that the process's counters never go back. Thread-safe.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "obs/metric_set.h"

namespace mooncake::obs {

class MetricsHub {
 public:
  // Called with the hub's lock held: must not come back to the hub, nor call a port that waits.
  using Read = std::function<MetricSet()>;

  // A part of the hub for as long as it lives; reads a last time when it ends. The tenant is empty
  // when it is no store.
  class Source {
   public:
    Source(MetricsHub& hub, std::string tenant, Read read);
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

   private:
    friend class MetricsHub;
    MetricsHub& hub_;
    const std::string tenant_;
    const Read read_;
  };

  MetricSet Collect();
  // Of the stores that are open, the first ones' if they are many; "default" when there is none.
  std::string Tenant();
  std::string Text();

  // The process's, never destroyed: its users may outlive main.
  static MetricsHub& OfProcess();
  void LeaveToParent() {}  // The sources' threads are the parent's too: nothing is touched.

 private:
  base::Mutex mu_;
  std::list<Source*> sources_ MC_GUARDED_BY(mu_);
  MetricSet ended_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::obs

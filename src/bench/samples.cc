#include "bench/samples.h"

#include <algorithm>

#include "base/hash.h"

namespace mooncake::bench {

void Samples::Add(uint64_t ns) {
  ++count_;
  if (ns_.size() < kKeptMax) {
    ns_.push_back(ns);
    return;
  }
  const uint64_t place = base::Mix64(count_) % count_;  // Reservoir sampling.
  if (place < kKeptMax) ns_[place] = ns;
}

void Samples::Merge(const Samples& other) {
  ns_.insert(ns_.end(), other.ns_.begin(), other.ns_.end());
  count_ += other.count_;
}

double Samples::Us(double part) const {
  if (ns_.empty()) return 0;
  std::vector<uint64_t> sorted = ns_;
  const auto at =
      sorted.begin() + static_cast<int64_t>(static_cast<double>(sorted.size() - 1) * part);
  std::nth_element(sorted.begin(), at, sorted.end());
  return static_cast<double>(*at) / 1e3;
}

}  // namespace mooncake::bench

// Durations of calls, exactly, up to a bound; above it a uniform sample of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mooncake::bench {

class Samples {
 public:
  void Add(uint64_t ns);
  void Merge(const Samples& other);
  // The duration that `part` of the calls do not exceed, in us. 0: there are none.
  double Us(double part) const;
  uint64_t count() const { return count_; }

 private:
  static constexpr size_t kKeptMax = 1 << 20;
  std::vector<uint64_t> ns_;
  uint64_t count_ = 0;
};

}  // namespace mooncake::bench

// AgeIndex: the values of one tenant that this node answers for, from the oldest on. Only of
// tenants whose own oldest values make room for their puts (ADR 18). Thread-safe.
#pragma once

#include <compare>
#include <optional>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "node/types.h"

namespace mooncake::node {

// What names a value here, and the order in which values go.
struct Age {
  bool soft_pin = false;      // After all that are not.
  uint64_t published_ms = 0;  // Since 1970, by the clock of whoever was its authority then.
  Version version = 0;
  uint64_t hash = 0;  // Of its key.
  auto operator<=>(const Age&) const = default;
};

class AgeIndex {
 public:
  void Add(const Age& age) {
    base::MutexLock lock(mu_);
    ages_.insert(age);
  }
  void Remove(const Age& age) {
    base::MutexLock lock(mu_);
    ages_.erase(age);
  }
  // At most `count` of them: those after `last`, or the first ones.
  std::vector<Age> After(const std::optional<Age>& last, size_t count) const {
    base::MutexLock lock(mu_);
    std::vector<Age> ages;
    auto next = last ? ages_.upper_bound(*last) : ages_.begin();
    for (; next != ages_.end() && ages.size() < count; ++next) ages.push_back(*next);
    return ages;
  }

 private:
  mutable base::Mutex mu_;
  std::set<Age> ages_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::node

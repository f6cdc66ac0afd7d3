// PlaceHints: where values were when they were last read. A read copies from there while the
// daemon is being asked, and uses what it has copied if the daemon's answer has the same size and
// checksum; so a hint may be wrong without harm. A fixed number of them. Thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace mooncake::client {

class PlaceHints {
 public:
  struct Hint {
    uint64_t key = 0;      // KeyOf; 0: there is none.
    uint64_t session = 0;  // Of the answer that named the area (its `high` half).
    uint64_t area = 0;
    uint64_t offset = 0;
    uint64_t size = 0;
  };

  static uint64_t KeyOf(std::string_view tenant, std::string_view key);
  // In the order of the keys; those that are not known have key 0.
  std::vector<Hint> Find(std::span<const uint64_t> keys) const;
  void Note(std::span<const Hint> hints);
  void Forget(uint64_t key);

 private:
  static constexpr size_t kHints = 8192;

  mutable base::Mutex mu_;
  std::vector<Hint> hints_ MC_GUARDED_BY(mu_);  // By key modulo kHints; empty until one is noted.
};

}  // namespace mooncake::client

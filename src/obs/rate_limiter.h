// RateLimiter: lets the first event of a kind through at once, then at most one a second, and
// counts the rest. All kinds together: kBurstMax at once, then at most one a second, so that a
// storm of many kinds is bounded too. Without a lock, so that a process may fork at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mooncake::obs {

class RateLimiter {
 public:
  static constexpr uint64_t kIntervalMs = 1'000;
  // Kinds beyond that share the last place.
  static constexpr size_t kKindsMax = 256;
  // With one a second, some 100 lines in the first minute of a storm.
  static constexpr uint64_t kBurstMax = 40;

  // The number of events of this kind that were held back since the last one that went through.
  // Empty: this one is held back. `now_ms` may jump.
  std::optional<uint64_t> Admit(std::string_view kind, uint64_t now_ms);

 private:
  struct Place {
    std::atomic<uint64_t> kind_hash{0};  // 0: free.
    std::atomic<uint64_t> next_ms{0};    // 0: none went through yet.
    std::atomic<uint64_t> held_back{0};
  };

  Place& PlaceOf(std::string_view kind);
  bool AdmitAny(uint64_t now_ms);

  std::array<Place, kKindsMax> places_;
  // When the next event of any kind would be due if they came once a second; one may come as long
  // as that is less than kBurstMax intervals ahead. 0: none came yet.
  std::atomic<uint64_t> due_ms_{0};
};

}  // namespace mooncake::obs

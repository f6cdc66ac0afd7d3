#include "obs/rate_limiter.h"

#include "base/hash.h"

namespace mooncake::obs {

// All relaxed: the places hold numbers that stand for themselves.
RateLimiter::Place& RateLimiter::PlaceOf(std::string_view kind) {
  const uint64_t hash = base::Hash64(kind) | 1;
  for (Place& place : places_) {
    uint64_t taken_by = place.kind_hash.load(std::memory_order_relaxed);
    if (taken_by == 0 &&
        place.kind_hash.compare_exchange_strong(taken_by, hash, std::memory_order_relaxed)) {
      return place;
    }
    if (taken_by == hash) return place;
  }
  return places_.back();
}

bool RateLimiter::AdmitAny(uint64_t now_ms) {
  uint64_t due_ms = due_ms_.load(std::memory_order_relaxed);
  uint64_t next_ms = 0;
  do {
    // A time far ahead means that the clock went back.
    const bool past = due_ms < now_ms || due_ms > now_ms + (kBurstMax + 1) * kIntervalMs;
    next_ms = (past ? now_ms : due_ms) + kIntervalMs;
    if (next_ms > now_ms + kBurstMax * kIntervalMs) return false;
  } while (!due_ms_.compare_exchange_weak(due_ms, next_ms, std::memory_order_relaxed));
  return true;
}

std::optional<uint64_t> RateLimiter::Admit(std::string_view kind, uint64_t now_ms) {
  Place& place = PlaceOf(kind);
  uint64_t next_ms = place.next_ms.load(std::memory_order_relaxed);
  // A next time beyond one interval means that the clock went back.
  const bool due = now_ms >= next_ms || next_ms > now_ms + kIntervalMs;
  if (!due || !AdmitAny(now_ms) ||
      !place.next_ms.compare_exchange_strong(next_ms, now_ms + kIntervalMs,
                                             std::memory_order_relaxed)) {
    place.held_back.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }
  return place.held_back.exchange(0, std::memory_order_relaxed);
}

}  // namespace mooncake::obs

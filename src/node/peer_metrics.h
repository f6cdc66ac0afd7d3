// PeerMetrics: counts and times what goes to other nodes, by what it is for. Thread-safe.
#pragma once

#include <array>
#include <atomic>

#include "node/wire.h"
#include "obs/metrics.h"

namespace mooncake::node {

class PeerMetrics {
 public:
  explicit PeerMetrics(Metrics& metrics) : metrics_(metrics) {}
  // Calls of one type that went out together, `ok` when all were answered.
  void Note(MessageType type, bool ok, uint64_t ns);

 private:
  static constexpr size_t kTypes = static_cast<size_t>(MessageType::kQuotaSurvey) + 1;
  struct Series {
    std::atomic<Counter*> calls{};
    std::atomic<Histogram*> duration{};
  };

  Metrics& metrics_;
  std::array<std::array<Series, 2>, kTypes> series_{};  // By type and outcome; null: never needed.
};

}  // namespace mooncake::node

// Evictor: makes room in this node's segments. A victim's route goes first (compare-and-drop at
// its authority, in batches), its bytes after. Victims whose authority is this node need no
// call; the others are only evicted where the caller may block.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "node/core.h"

namespace mooncake::node {

class Evictor {
 public:
  Evictor(Runtime& runtime, Metrics& metrics);
  void Start(Core& core);
  void Stop();

  // Reserves, evicting as needed. An empty pin: no room (also when the value is larger than any
  // segment; nothing is evicted then), or, with `may_block` false, `*would_block` is set: call
  // again where blocking is allowed.
  ExtentPin Reserve(const ReserveRequest& request, bool may_block, uint64_t deadline_ms,
                    bool* would_block);
  // Evicts about `bytes`; returns how many bytes were retired.
  uint64_t MakeRoom(uint64_t bytes, std::optional<uint32_t> segment, bool may_block,
                    bool* would_block, ExtentStore::Newest newest = ExtentStore::Newest::kMayGo);

 private:
  void Loop();
  void EvictToLowWatermark();
  uint64_t RetireAll(const std::vector<ExtentPin>& victims);
  // Splits off and retires those that this node is the authority of.
  uint64_t EvictServed(std::vector<ExtentPin>* victims);
  uint64_t EvictRouted(const std::vector<ExtentPin>& victims);

  static constexpr int kRoundsMax = 64;
  Runtime& runtime_;
  Counter& evicted_;
  Counter& evicted_bytes_;
  Histogram& duration_;
  Counter& background_;
  Core* core_ = nullptr;  // Constant after Start.
  std::unique_ptr<Event> work_;
  std::unique_ptr<Thread> thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace mooncake::node

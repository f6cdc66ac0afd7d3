// Evictor: makes room in this node's segments. A victim's route goes first (compare-and-drop at
// its authority, in batches), its bytes after. Victims whose authority is this node need no
// call; the others are only evicted where the caller may block.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "base/mutex.h"
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
  // Evicts about `bytes`; returns how many bytes were retired. Asks other authorities, where it may
  // block, until `deadline_ms`.
  uint64_t MakeRoom(uint64_t bytes, const ExtentStore::VictimsWanted& wanted, bool may_block,
                    uint64_t deadline_ms, bool* would_block);

 private:
  void Loop();
  void EvictToLowWatermark();
  uint64_t RetireAll(const std::vector<ExtentPin>& victims);
  // Splits off and retires those that this node is the authority of.
  uint64_t EvictServed(std::vector<ExtentPin>* victims);
  uint64_t EvictRouted(const std::vector<ExtentPin>& victims, uint64_t deadline_ms);
  bool WasSilent(const NodeId& authority) const;
  void NoteAnswer(const NodeId& authority, bool answered);

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
  mutable base::Mutex mu_;
  // Authorities that did not answer, and until when they are not asked again: each put that needs
  // room would wait for them.
  std::map<NodeId, uint64_t> silent_until_ms_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::node

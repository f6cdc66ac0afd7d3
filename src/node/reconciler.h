// Reconciler: compares extents with routes, in both directions, and frees what nobody names.
//
//  - Reserved extents: a writer that died, or a publish whose outcome is unknown. After a while
//    the authority is asked: named ones become live, others go once their writer's lease or its
//    longest request is over, or it has said that it will not publish them any more.
//  - Live extents, a part of them each round: those that the authority does not name go. All of
//    them after slots have moved: a dead authority takes notices about them along, and a new one
//    knows only the newest copies.
//  - Routes whose owner has been out of the view for two rounds go.
#pragma once

#include <atomic>
#include <memory>
#include <set>

#include "node/core.h"

namespace mooncake::node {

class Reconciler {
 public:
  // Rounds are so frequent that what a dead node leaves behind is gone within one lease.
  Reconciler(Runtime& runtime, Metrics& metrics, uint64_t lease_ttl_ms);
  void Start(Core& core);
  void Stop();

 private:
  static constexpr uint64_t kPeriodMsMax = 5'000;
  static constexpr size_t kLiveShardsPerRound = 4;
  // The first can come before the slots that move are taken over.
  static constexpr int kWholeRounds = 3;
  void Loop();
  void RunOnce();
  void NoteTakeovers();
  void CheckExtents(const std::vector<ExtentPin>& extents);
  // `era`: Truth::era of the slot where the answer comes from.
  void Judge(const ExtentPin& extent, ItemCode code, Version version, uint64_t era);
  bool WriterGone(const Extent& extent, const routing::ClusterView& view) const;
  void SweepOwners();

  Runtime& runtime_;
  const uint64_t period_ms_;
  Counter& orphans_;
  Core* core_ = nullptr;  // Constant after Start.
  std::unique_ptr<Event> work_;
  std::unique_ptr<Thread> thread_;
  std::atomic<bool> stop_{false};
  size_t next_shard_ = 0;               // Reconciler thread only.
  int whole_rounds_ = 0;                // Likewise: rounds to come that look at everything.
  ViewPtr last_view_;                   // Likewise: of the last round.
  std::set<NameIndex> missing_owners_;  // Likewise: not in the view last round.
};

}  // namespace mooncake::node

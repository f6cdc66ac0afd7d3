// Outbox: what this node tells others in the background. Notices to owners (these extents are
// live, those are no longer used) and mirror updates to the next rank. Best effort: batched,
// sent by one thread, dropped after a few tries or when too many wait; the reconciler repairs
// what a lost notice leaves behind.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "node/core.h"

namespace mooncake::node {

class Outbox {
 public:
  Outbox(Runtime& runtime, Metrics& metrics);
  void Start(Core& core);
  // Sends what is queued, within `deadline_ms`, and ends the thread.
  void Stop(uint64_t deadline_ms);

  void Committed(const Place& place, Version version);
  void Retired(const Place& place);
  // Counts space that a change of a route gave back: our own, or another owner's.
  void NoteReleased(bool own) { (own ? released_own_ : released_remote_).Increment(); }
  // `route` is what the key's authority, this node, now says; no replicas: it is gone.
  void Mirror(const KeyRef& ref, Route route);
  // Waits until all that was queued before has been tried once. False: not by the deadline.
  bool Flush(uint64_t deadline_ms);

 private:
  static constexpr size_t kQueueMax = 100'000;
  static constexpr size_t kBatchMax = 4096;
  // One try in kIdleWaitMs. An owner that has just joined is not in the view yet, a silent one may
  // become an authority's source of truth when it is heard again: both have to learn what is no
  // longer used.
  static constexpr int kTriesMax = 600;
  struct Notice {
    Place place;
    Version version = 0;  // 0: retired.
    int tries = 0;
  };
  struct Queues {
    std::map<NameIndex, std::vector<Notice>> notices;
    std::vector<KeyedRoute> mirrors;
    size_t size = 0;
  };
  void Push(NameIndex owner, Notice notice);
  void TryLater(NameIndex owner, std::span<const Notice> notices);
  void TakeDue(Queues* queues);
  void Loop();
  void Send(const Queues& queues);
  void SendNotices(const routing::ClusterView& view,
                   const std::map<NameIndex, std::vector<Notice>>& notices);
  void SendMirrors(const routing::ClusterView& view, const std::vector<KeyedRoute>& mirrors);

  Runtime& runtime_;
  Counter& dropped_;
  Counter& released_own_;
  Counter& released_remote_;
  Core* core_ = nullptr;  // Constant after Start.
  std::unique_ptr<Event> work_;
  std::unique_ptr<Event> sent_;
  std::unique_ptr<Thread> thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> pushed_{0};
  std::atomic<uint64_t> handled_{0};
  std::map<NameIndex, std::vector<Notice>> later_;  // Outbox thread only: to be tried again,
  size_t later_size_ = 0;
  uint64_t later_ms_ = 0;  // from then on.

  base::Mutex mu_;
  Queues queues_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::node

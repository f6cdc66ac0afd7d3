// Outbox: what this node tells others in the background. Notices to owners (these extents are
// live, those are no longer used) and mirror updates to the next rank. Best effort: batched,
// dropped after a few tries or when too many wait; the reconciler repairs what a lost notice
// leaves behind.
//
// A few threads send, each to one peer at a time and no two to the same: what is said to a peer
// that answers stays in order, and one that is silent does not keep the others from hearing. An
// authority that dies takes along what it has not said yet.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "node/core.h"

namespace mooncake::node {

class Outbox {
 public:
  Outbox(Runtime& runtime, Metrics& metrics);
  void Start(Core& core);
  // Sends what is queued, within `deadline_ms`, and ends the threads.
  void Stop(uint64_t deadline_ms);

  void Committed(const Place& place, Version version);
  void Retired(const Place& place);
  // Its writer will not publish it any more, and does not know whether it has.
  void Abandoned(const Place& place);
  // Counts space that a change of a route gave back: our own, or another owner's.
  void NoteReleased(bool own) { (own ? released_own_ : released_remote_).Increment(); }
  // `route` is what the key's authority, this node, now says; no replicas: it is gone.
  void Mirror(const KeyRef& ref, const Route& route);
  // Waits until all that is queued by now has been tried once. False: not by the deadline.
  bool Flush(uint64_t deadline_ms);

 private:
  static constexpr size_t kThreads = 4;
  static constexpr size_t kQueueMax = 200'000;
  static constexpr size_t kPeerQueueMax = kQueueMax / 2;  // A silent peer leaves room for others.
  static constexpr size_t kBatchMax = 4096;
  // One try in kIdleWaitMs. An owner that has just joined is not in the view yet, a silent one may
  // become an authority's source of truth when it is heard again: both have to learn what is no
  // longer used.
  static constexpr int kTriesMax = 600;
  enum class What : uint8_t { kCommitted, kRetired, kAbandoned };
  struct Notice {
    Place place;
    What what = What::kRetired;
    Version version = 0;  // Of kCommitted.
    int tries = 0;
  };
  struct Queue {  // For one peer.
    std::vector<Notice> notices;
    std::vector<KeyedRoute> mirrors;
    std::vector<Notice> later;  // To be tried again,
    uint64_t later_ms = 0;      // from then on.
    bool busy = false;          // A thread is sending to it.
    // The number of the oldest that was not tried yet: queued, and being sent; 0: none is.
    uint64_t queued_since = 0;
    uint64_t sending_since = 0;
  };
  struct Batch {
    NameIndex peer = kSelf;
    std::vector<Notice> notices;
    std::vector<KeyedRoute> mirrors;
  };
  void Push(NameIndex owner, Notice notice);
  void Loop(Event& turn);
  // One thread watches for work at a time, so that work wakes one. The one that has found some lets
  // the next one watch.
  void AwaitTurn(Event& turn);
  void PassTurn();
  // What is queued for one peer; nullopt: nothing is due, or others are sending it.
  std::optional<Batch> Take();
  bool IsDue(const Queue& queue, uint64_t now_ms) const;
  // Takes back the notices to try again.
  void Done(const Batch& batch, std::span<const Notice> failed);
  // Returns the notices to try again.
  std::vector<Notice> Send(const Batch& batch);
  // False: the peer does not answer; those that it did not get are dropped.
  bool SendMirrors(const routing::ViewNode& peer, std::span<const KeyedRoute> mirrors);
  bool HasRoom(const Queue& queue) const MC_REQUIRES(mu_);
  void NoteQueued(Queue& queue) MC_REQUIRES(mu_);
  // Whether something with that number or an older one has not been tried yet.
  bool IsUntried(uint64_t number);
  // The name of a node of peers_view_. Each put asks for it, so it is looked up once.
  std::optional<NameIndex> PeerAt(routing::NodeIndex node) MC_REQUIRES(mu_);

  Runtime& runtime_;
  Counter& dropped_;
  Counter& released_own_;
  Counter& released_remote_;
  Core* core_ = nullptr;  // Constant after Start.
  std::unique_ptr<Event> work_;
  std::unique_ptr<Event> sent_;
  std::vector<std::unique_ptr<Event>> turns_;  // Of the threads: it is to watch now.
  std::vector<std::unique_ptr<Thread>> threads_;
  std::atomic<bool> stop_{false};

  base::Mutex mu_;
  std::map<NameIndex, Queue> queues_ MC_GUARDED_BY(mu_);
  std::vector<Event*> idle_ MC_GUARDED_BY(mu_);  // Turns of the threads that wait for one.
  bool watched_ MC_GUARDED_BY(mu_) = false;
  NameIndex last_ MC_GUARDED_BY(mu_) = kSelf;    // Whose turn it was.
  uint64_t last_number_ MC_GUARDED_BY(mu_) = 0;  // Of what was queued last.
  size_t size_ MC_GUARDED_BY(mu_) = 0;           // Queued; not those to be tried again.
  size_t later_size_ MC_GUARDED_BY(mu_) = 0;     // To be tried again.
  ViewPtr peers_view_ MC_GUARDED_BY(mu_);        // What peers_ belongs to.
  std::vector<std::optional<NameIndex>> peers_ MC_GUARDED_BY(mu_);  // By NodeIndex.
};

}  // namespace mooncake::node

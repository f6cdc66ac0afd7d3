// NetworkState: what a MemoryNetwork and its transports share: the nodes, the faults, and the
// requests that are under way.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "runtime/runtime.h"
#include "transfer/memory/memory_network.h"
#include "transfer/transport.h"

namespace mooncake::transfer {

// One request under way: a copy of what was sent, and the peer's call while there is one.
// Begin and End bracket each use of the peer's call, by one thread at a time.
struct Delivery {
  enum class Stage : uint8_t { kAccept, kPrepare, kRun, kServed, kFailed };

  std::string from, to;
  uint16_t type = 0;
  std::string message;
  std::vector<std::byte> payload;
  uint64_t deadline_ms = 0;

  // Of the thread between Begin and End.
  Stage stage = Stage::kAccept;
  std::unique_ptr<ServerCall> call;
  Reply reply;

  std::atomic<bool> finished = false;  // A thread of its own has brought it to its end.
  // Guarded by NetworkState::mu_.
  Service* service = nullptr;
  int parties = 0;  // The caller and the serving thread, while they need it.
  bool in_use = false;
  bool revoked = false;  // The peer is closing: its call must not be used any more.
};

enum class Link : uint8_t { kUp, kLost, kPaused, kRefused };

class NetworkState {
 public:
  NetworkState(Runtime& runtime_in, uint64_t stall_ms_in)
      : runtime(runtime_in), stall_ms(stall_ms_in) {}
  ~NetworkState();

  Runtime& runtime;
  const uint64_t stall_ms;

  // The nodes.
  Result<std::string> AddNode(const std::string& host, uint16_t port, Service* service);
  // Destroys the calls that the node serves, once nobody uses them.
  void RemoveNode(const std::string& endpoint);
  Link LinkBetween(const std::string& from, const std::string& to);

  // Faults.
  NetworkFaults faults();
  void SetFaults(const NetworkFaults& faults);
  void SetGroups(std::vector<std::set<std::string>> groups);
  void SetBlocked(const std::string& from, const std::string& to, bool blocked);
  void SetDown(const std::string& endpoint, bool down);
  void SetPaused(const std::string& endpoint, bool paused);
  void Heal();
  bool Chance(double probability);
  uint64_t Between(uint64_t low, uint64_t high);

  // Requests under way.
  bool Begin(const std::shared_ptr<Delivery>& delivery);  // False: the peer is gone.
  void End(const std::shared_ptr<Delivery>& delivery);
  bool Revoked(const Delivery& delivery);
  // The last party to leave destroys the peer's call.
  void Leave(const std::shared_ptr<Delivery>& delivery);
  // Brings the peer's call on. False: it would block. REQUIRES: between Begin and End.
  bool Serve(Delivery& delivery, bool may_block);
  // Serves on a thread of its own, after `delay_ms` and the end of a pause; then sets
  // `finished` and, if given, the event.
  void ServeLater(const std::shared_ptr<Delivery>& delivery, uint64_t delay_ms,
                  const std::shared_ptr<Event>& event);
  void WaitForThreads();

  // Copies in steps, with a switch point after each. `copy(offset, size)` moves one step and
  // returns whether to go on.
  bool InSteps(uint64_t size, const std::function<bool(uint64_t, uint64_t)>& copy);

  // One-sided access.
  std::string AddRegion(MutableBytes range);
  void RemoveRegion(MutableBytes range, const std::set<std::string>& tokens);
  void RemoveRegions(const std::set<std::string>& tokens);
  bool IsSilent(const std::string& from, const RemoteAccess& access);
  Status Access(const std::string& from, RemoteAccess& access);

 private:
  struct Node {
    Service* service = nullptr;
    std::set<std::shared_ptr<Delivery>> deliveries;
  };
  struct Worker {
    std::unique_ptr<Thread> thread;
    std::shared_ptr<std::atomic<bool>> done;
  };

  bool ServePayload(Delivery& delivery);
  void ServeOnThread(const std::shared_ptr<Delivery>& delivery, uint64_t delay_ms);
  void KeepWorker(Worker worker);
  Status CopyStep(RemoteAccess& access, uint64_t offset, uint64_t size);

  base::Mutex mu_;
  std::map<std::string, Node> nodes_ MC_GUARDED_BY(mu_);
  uint16_t next_port_ MC_GUARDED_BY(mu_) = 1;
  NetworkFaults faults_ MC_GUARDED_BY(mu_);
  std::vector<std::set<std::string>> groups_ MC_GUARDED_BY(mu_);
  std::set<std::pair<std::string, std::string>> blocked_ MC_GUARDED_BY(mu_);
  std::set<std::string> down_ MC_GUARDED_BY(mu_);
  std::set<std::string> paused_ MC_GUARDED_BY(mu_);
  std::map<std::string, MutableBytes, std::less<>> regions_ MC_GUARDED_BY(mu_);
  uint64_t next_token_ MC_GUARDED_BY(mu_) = 1;
  std::vector<Worker> workers_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::transfer

// EventLoop: one thread that serves connections with epoll (level-triggered). The first loop of
// a server also accepts and hands connections to the others.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "transfer/tcp/server_connection.h"
#include "transfer/tcp/socket.h"
#include "transfer/tcp/worker_pool.h"

namespace mooncake::transfer {

class EventLoop {
 public:
  EventLoop(ServerContext& context, WorkerPool& workers);
  // Closes its connections. REQUIRES: Run has returned and no worker has one of them.
  ~EventLoop();

  // Before Run. An error is the operating system's lack of descriptors.
  Status Open();
  // Before Run: `accepted` gets each new connection on this loop's thread; `full` is called there
  // when all places are taken, and none of this loop's connections may go.
  Status Accept(UniqueFd listener, std::function<void(UniqueFd)> accepted,
                std::function<void()> full);
  // Before Run: called on this loop's thread every few seconds.
  void SetJanitor(std::function<void(uint64_t now_ms)> janitor) { janitor_ = std::move(janitor); }

  void Run();  // Until Stop.

  // From any thread.
  void Adopt(UniqueFd fd);
  void Return(ServerConnection* connection);  // A worker is done with it.
  void AskForRoom();  // Ends the connection that has been silent longest, if one may go.
  void Stop();

 private:
  void TakeInbox(uint64_t now_ms);
  void AcceptSome(uint64_t now_ms);
  bool AwaitRoom(uint64_t now_ms);
  void MakeRoom(uint64_t now_ms);
  ServerConnection* LongestSilent(uint64_t now_ms) const;
  void PauseAccepting(uint64_t now_ms, uint64_t pause_ms);
  void Handle(ServerConnection* connection, uint64_t now_ms);
  bool Watch(ServerConnection* connection, uint32_t events);
  void Unwatch(ServerConnection* connection);
  void Sweep(uint64_t now_ms);
  int TimeoutMs(uint64_t now_ms) const;
  void Wake();

  ServerContext& context_;
  WorkerPool& workers_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<bool> stop_ = false;
  std::atomic<bool> make_room_ = false;

  // Of the loop's thread.
  std::unordered_map<ServerConnection*, std::unique_ptr<ServerConnection>> connections_;
  UniqueFd listener_;
  std::function<void(UniqueFd)> accepted_;
  std::function<void()> full_;
  std::function<void(uint64_t)> janitor_;
  uint64_t accept_again_ms_ = 0;  // 0: accepting.
  uint64_t sweep_ms_ = 0;         // When the next sweep is due.
  bool room_wanted_ = false;      // A connection waits for the place of a silent one here.
  uint64_t room_asked_ms_ = 0;    // When all loops were asked for one, last and in vain.

  base::Mutex mu_;
  std::vector<UniqueFd> adopted_ MC_GUARDED_BY(mu_);
  std::vector<ServerConnection*> returned_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::transfer

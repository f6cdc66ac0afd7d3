// Link: a dummy client's session with its daemon. Makes the calls, keeps the Unix socket, maps
// the daemon's memory, and says Hello again when the daemon has been restarted: it registers
// what was registered. A call that could not be sent is tried again, one that was sent is not.
//
// Only hello goes to the daemon's address, as a gRPC call; all other calls go over connections of
// the Unix socket.
//
// Thread-safe. A call fails with kTransport while the daemon is away.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "client/dummy/call_pool.h"
#include "client/dummy/messages.h"
#include "client/dummy/pulse.h"
#include "client/dummy/side_channel.h"
#include "client/dummy/unix_socket.h"
#include "mooncake/dummy.h"
#include "runtime/mapped_memory.h"
#include "runtime/runtime.h"

namespace mooncake::client {

class Link {
 public:
  // kTransport, kInvalidState: names the address, the step that failed and the reason.
  static Result<std::unique_ptr<Link>> Connect(const DummyConfig& config, Runtime& runtime);
  ~Link();
  void Close();  // Idempotent. Calls in progress end soon.

  // A call that is on its way. Dropped, it is as good as interrupted.
  using Started = std::unique_ptr<CallPool::Connection>;
  // Of a call that begins now.
  uint64_t Deadline() const { return runtime_.NowMs() + config_.rpc_timeout_ms; }
  // Sends the request of a call that will be made, so that the daemon begins. Empty: it did not;
  // the call itself will send.
  template <typename Request>
  Started Start(CallType type, Request& request, uint64_t deadline_ms) {
    return Send(type, request, CallPool::Caller::kWorksOn, deadline_ms);
  }

  // Each leaves the session that it was made in (its `high` half) in the request.
  Status Put(daemon_v1::PutRequest& request, daemon_v1::CodesReply* reply);
  Status Acquire(daemon_v1::AcquireRequest& request, daemon_v1::AcquireReply* reply,
                 uint64_t deadline_ms, Started started);
  Status Exist(daemon_v1::KeysRequest& request, daemon_v1::CodesReply* reply);
  Status Remove(daemon_v1::KeysRequest& request, daemon_v1::CodesReply* reply);
  Status Sizes(daemon_v1::KeysRequest& request, daemon_v1::SizesReply* reply);
  Status RemoveAll(daemon_v1::RemoveAllRequest& request, daemon_v1::RemoveAllReply* reply);
  Status Metrics(daemon_v1::MetricsRequest& request, daemon_v1::MetricsReply* reply);
  Status Health();

  // Returns after the daemon has mapped the memory file. The descriptor is kept as a copy.
  Status RegisterRegion(uint64_t id, int fd, uint64_t size);
  void UnregisterRegion(uint64_t id);
  // The daemon's memory behind an area. The shared pointer keeps it mapped while it is read,
  // also when the daemon is gone meanwhile (docs/adr, dummy memory). `session`: the one of the
  // call that named the area (its `high` half). When it is no longer the link's, the daemon that
  // named it is gone.
  Result<std::shared_ptr<const MappedMemory>> Area(uint64_t id, uint64_t session);

  // The same if it is mapped already; nullptr: it is not.
  std::shared_ptr<const MappedMemory> KnownArea(uint64_t id, uint64_t session);

  uint64_t lease_ms() const { return lease_ms_.load(); }
  std::string node() const;

  // Marks a call in the control page for as long as it lives.
  class Mark {
   public:
    explicit Mark(Link& link);
    ~Mark();
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    explicit operator bool() const { return sequence_ != 0; }  // False: too many calls.
    void Fill(daemon_v1::CallMark* out) const;

   private:
    Link& link_;
    uint32_t slot_ = 0;
    uint32_t sequence_ = 0;
  };

  Link(const DummyConfig& config, Runtime& runtime, MappedMemory control);  // For Connect.

 private:
  struct Registration {
    Descriptor fd;
    uint64_t size = 0;
  };

  Status SayHello(uint64_t deadline_ms);
  template <typename Request, typename Reply>
  Status CallByAddress(std::string_view method, const Request& request, Reply* reply,
                       uint64_t deadline_ms);
  Status ConnectSocket(const daemon_v1::HelloReply& hello, uint64_t limit_ms);
  Status RegisterAll();
  // One request and its answer, with a descriptor each way. Ends the connection when the answer
  // does not come, as it would be taken for the next one's.
  Result<Packet> Exchange(const SideMessage& message, int fd, SideAnswer* answer)
      MC_REQUIRES(socket_mu_);
  Result<Packet> Ask(SideMessage message, int fd, SideAnswer* answer);
  void Watch();
  bool SocketBroken();
  void Lose();
  bool WaitReady(uint64_t deadline_ms);
  template <typename Request, typename Reply>
  Status Invoke(CallType type, Request& request, Reply* reply, uint64_t deadline_ms,
                Started started = {});
  // Waits until a call had better be tried again. False: none could be made.
  bool WaitToRetry(uint64_t give_up_ms);
  template <typename Request>
  Started Send(CallType type, Request& request, CallPool::Caller caller, uint64_t deadline_ms);
  // The answer of a call that was started.
  template <typename Reply>
  Status Finish(CallType type, Started call, Reply* reply, uint64_t deadline_ms);

  const DummyConfig config_;
  Runtime& runtime_;
  const MappedMemory control_;
  CallPool calls_;
  Pulse pulse_;
  std::unique_ptr<Event> ready_;  // Set while the session is good.
  std::unique_ptr<Event> wake_;   // Something for the watching thread.
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};  // 0 with stop_.
  std::atomic<uint64_t> lease_ms_{0};

  base::Mutex socket_mu_;  // One request on the socket at a time.
  Descriptor socket_ MC_GUARDED_BY(socket_mu_);

  mutable base::Mutex mu_;
  daemon_v1::Session session_ MC_GUARDED_BY(mu_);
  std::string node_ MC_GUARDED_BY(mu_);
  std::map<uint64_t, Registration> regions_ MC_GUARDED_BY(mu_);
  std::map<uint64_t, std::shared_ptr<const MappedMemory>> areas_ MC_GUARDED_BY(mu_);
  std::vector<uint32_t> free_slots_ MC_GUARDED_BY(mu_);
  uint32_t next_sequence_ MC_GUARDED_BY(mu_) = 0;

  std::unique_ptr<Thread> watch_;  // Last: it uses all of the above.
};

}  // namespace mooncake::client

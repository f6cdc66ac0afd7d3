// Session: what the daemon keeps for one dummy client: the memory that it registered, its control
// page, and the leases of what it is reading. All of it goes with the client's connection.
//
// Memory of clients is only ever mapped to be read. Shared pointers keep a mapping alive for the
// call that reads it while the client unregisters or dies.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "client/dummy/side_channel.h"
#include "client/dummy/unix_socket.h"
#include "daemon/lease_reads.h"
#include "obs/metrics.h"
#include "runtime/runtime.h"

namespace mooncake::daemon {

inline constexpr uint64_t kLeaseMs = 60'000;  // How long a client may count on a lease.

struct SessionId {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const SessionId&) const = default;
};

using RegionPtr = std::shared_ptr<const MappedMemory>;

class Session {
 public:
  Session(SessionId id, uint32_t domain, uint64_t pid, uint64_t now_ms)
      : id_(id), domain_(domain), pid_(pid), created_ms_(now_ms) {}

  const SessionId& id() const { return id_; }
  uint32_t domain() const { return domain_; }
  uint64_t pid() const { return pid_; }
  uint64_t created_ms() const { return created_ms_; }

  // kInvalidState: attached already. The memory's errors are MappedMemory::MapDescriptor's.
  Status Attach(client::Descriptor control, uint64_t size);
  bool attached() const { return attached_.load(); }
  // Its connection has ended, and with it all of the others.
  void End() { ended_.store(true); }
  bool ended() const { return ended_.load(); }
  // Replaces a region of the same id. kBackPressure: the client has too many.
  Status Register(uint64_t id, client::Descriptor fd, uint64_t size);
  Status Unregister(uint64_t id);
  RegionPtr Region(uint64_t id) const;  // nullptr: not registered.
  // Whether the client's call is still going on. Empty: no such slot, or not attached.
  std::function<bool()> Watch(uint32_t slot, uint32_t sequence) const;

  // Keeps what a call of the client's reads until the call is over, or the lease expires.
  // kInvalidArgument: there is no such mark; kBackPressure: too many leases are out.
  Status Keep(Lease lease, uint32_t slot, uint32_t sequence);
  // Gives back what is over.
  void DropReleased(uint64_t now_ms);

  struct Sizes {
    uint64_t regions = 0;
    uint64_t region_bytes = 0;
    uint64_t leases = 0;
  };
  Sizes sizes() const;

 private:
  static constexpr size_t kRegionsMax = 4'096;
  static constexpr size_t kLeasesMax = 1'024;

  const SessionId id_;
  const uint32_t domain_;
  const uint64_t pid_;
  const uint64_t created_ms_;
  std::atomic<bool> attached_{false};
  std::atomic<bool> ended_{false};
  mutable base::Mutex mu_;
  RegionPtr control_ MC_GUARDED_BY(mu_);
  std::map<uint64_t, RegionPtr> regions_ MC_GUARDED_BY(mu_);
  struct Kept {
    Lease lease;
    uint32_t slot = 0;
    uint32_t sequence = 0;
  };
  std::vector<Kept> leases_ MC_GUARDED_BY(mu_);
  std::atomic<size_t> leases_out_{0};  // As many as there are, to look at without the lock.
};

using SessionPtr = std::shared_ptr<Session>;

// All sessions. Thread-safe.
class Sessions {
 public:
  Sessions(Runtime& runtime, Metrics& metrics) : runtime_(runtime), metrics_(metrics) {}

  // nullptr: there are kSessionsMax.
  SessionPtr Create(uint32_t domain, uint64_t pid);
  SessionPtr Find(const SessionId& id) const;  // nullptr: unknown.
  void Remove(const SessionId& id);
  // Gives back what all clients have read.
  void DropReleased();
  // That, and drops sessions that never attached.
  void Sweep();
  void RefreshGauges();
  uint64_t count() const;

  // Something that a well-behaved client does not do. Counted, and logged at most once a second.
  void NoteRefused(const std::string& reason, const std::string& text);

 private:
  static constexpr size_t kSessionsMax = 1'024;
  static constexpr uint64_t kAttachMs = 30'000;

  Runtime& runtime_;
  Metrics& metrics_;
  std::vector<SessionPtr> All() const;

  mutable base::Mutex mu_;
  std::map<uint64_t, SessionPtr> by_id_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::daemon

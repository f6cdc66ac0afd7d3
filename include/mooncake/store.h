// Store: a client of the distributed object store, and a node of it.
//
//   mooncake::StoreConfig config;
//   config.local_hostname = "127.0.0.1";
//   config.metadata_url = "sqlite:///tmp/cluster.db";
//   config.global_segment_size = 64 << 20;
//   auto store = mooncake::Store::Open(config);
//   if (!store) { std::cerr << store.error().ToString(); return 1; }
//   mooncake::Status put = (*store)->Put("key", mooncake::BytesOf("value"));
//   mooncake::Result<std::string> value = (*store)->Get("key");
//
// Thread-safety: every method may be called from any number of threads at once, Close too.
// Bounded time: every method returns within StoreConfig::request_timeout_ms.
// Memory: a call never touches the caller's memory after it has returned.
// Errors: kInvalidState after Close; kInvalidArgument for a malformed call (before anything is
// sent); the data-plane codes of result.h otherwise. A batch reports one outcome per item, in
// order; a healthy item never fails because of its neighbour.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/bytes.h"
#include "mooncake/config.h"
#include "mooncake/result.h"
#include "mooncake/tenant_policy.h"

namespace mooncake {

inline constexpr size_t kKeySizeMax = 64 * 1024;  // UTF-8 bytes.

// How a put is placed. Defaults of a policy that is given; no policy at all means
// "StoreConfig::replica_count copies, wherever one round trip suffices".
struct ReplicateConfig {
  uint32_t replica_num = 1;
  std::vector<std::string> preferred_segments;        // Hard, unless with_soft_pin.
  std::vector<std::string> preferred_storage_owners;  // "stable_id" or "stable_id:epoch"; soft.
  bool prefer_local = true;
  bool with_soft_pin = false;  // Evicted only when nothing unpinned is left.
  bool prefer_alloc_in_same_node = false;
};

struct PutItem {
  std::string_view key;
  std::span<const ConstBytes> parts;  // The value is their concatenation.
};

struct PutOptions {
  std::string_view tenant;                     // Empty: the store's own.
  const ReplicateConfig* replicate = nullptr;  // nullptr: no policy.
  bool if_absent = false;  // An already published value is left alone and counts as success.
};

struct GetItem {
  std::string_view key;
  // Filled in order; the value may end before they do. kTooSmall when it does not fit.
  std::span<const MutableBytes> targets;
};

struct RangeItem {
  std::string_view key;
  uint64_t offset = 0;  // Into the value.
  MutableBytes target;  // kTooSmall unless [offset, offset + size) lies within the value.
};

struct ReplicaInfo {
  std::string owner;  // "stable_id:epoch"
  std::string segment_name;
  uint64_t segment_offset = 0;
  uint64_t length = 0;
  uint32_t priority = 0;
  std::string tier = "Dram";
};

struct RouteInfo {
  std::string key;       // "tenant::key", or "tenant::ns/domain/object_set/key" percent-encoded.
  uint64_t version = 0;  // Grows with every publication of the key.
  uint64_t size = 0;
  std::string state = "Active";
  std::vector<ReplicaInfo> replicas;
};

struct SegmentInfo {
  std::string owner;
  std::string segment_name;
  std::string transport_endpoint;
  uint64_t capacity_bytes = 0;
  uint64_t used_bytes = 0;
  std::string state = "Active";  // "Draining": takes no new copies, itself or its whole node.
  uint64_t alignment_bytes = 64;
  std::vector<std::string> tags;
};

struct HandoffPlan {
  std::string stable_id;
  uint64_t from_epoch = 0;
  uint64_t to_epoch = 0;
  uint64_t deadline_ms = 0;  // Since 1970: when the successor has to be active by.
};

enum class Existence : int8_t { kMissing = 0, kPresent = 1 };

// Gives memory for a value whose size is only known once the owner has answered. Called at most
// once per try of the item, on the calling thread, without any lock held. An empty optional
// fails the item with kTooSmall.
using AllocateTarget = std::function<std::optional<MutableBytes>(size_t item, uint64_t size)>;

// Asks the host program, during long waits and on the waiting thread, whether the call should
// end (a second Ctrl-C, for example); the call then fails with kTransport. One check for the
// process; nullptr: never. Thread-safe.
void SetInterruptCheck(bool (*check)());

struct DummyConfig;

class Store {
 public:
  virtual ~Store() = default;  // Closes.

  // Joins the cluster. Leaves nothing behind when it fails. kInvalidArgument: a bad value;
  // kMetadata: the metadata service did not answer within startup_timeout_ms; kConflict: a live
  // node holds the stable_id or the local_segment_name, or a silent one still holds the stable_id
  // after a whole lease_ttl_ms; kUnsupported: a setting that this build does not have.
  static Result<std::unique_ptr<Store>> Open(const StoreConfig& config);

  // Becomes a client of a daemon on this host (include mooncake/dummy.h). kTransport: it is not
  // reachable; kInvalidState: it refuses; both name the address, the step and the reason.
  static Result<std::unique_ptr<Store>> OpenDummy(const DummyConfig& config);

  // Leaves the cluster within 10 s; idempotent. Pool leases keep their memory alive.
  virtual void Close() = 0;
  virtual bool closed() const = 0;

  // --- Data, in batches -------------------------------------------------------------------
  virtual std::vector<Status> PutMany(std::span<const PutItem> items,
                                      const PutOptions& options) = 0;
  // Sizes of the values read.
  virtual std::vector<Result<uint64_t>> GetMany(std::span<const GetItem> items,
                                                std::string_view tenant) = 0;
  virtual std::vector<Result<uint64_t>> GetManyAllocated(std::span<const std::string_view> keys,
                                                         std::string_view tenant,
                                                         const AllocateTarget& allocate) = 0;
  virtual std::vector<Result<uint64_t>> GetRanges(std::span<const RangeItem> items,
                                                  std::string_view tenant) = 0;
  virtual std::vector<Result<Existence>> ExistMany(std::span<const std::string_view> keys,
                                                   std::string_view tenant) = 0;
  virtual std::vector<Status> RemoveMany(std::span<const std::string_view> keys,
                                         std::string_view tenant) = 0;
  // The value's size from its route; the value is not read.
  virtual Result<uint64_t> GetSize(std::string_view key, std::string_view tenant = {}) = 0;
  virtual Result<RouteInfo> QueryRoute(std::string_view key, std::string_view tenant = {}) = 0;
  // Removes every key of the store's tenant, domain and object_set, cluster-wide.
  virtual Result<uint64_t> RemoveAll(std::string_view tenant = {}) = 0;

  // --- Data, one key ----------------------------------------------------------------------
  Status Put(std::string_view key, ConstBytes value, const PutOptions& options = {});
  Result<std::string> Get(std::string_view key, std::string_view tenant = {});
  Result<uint64_t> GetInto(std::string_view key, MutableBytes target, std::string_view tenant = {});
  Result<bool> Exists(std::string_view key, std::string_view tenant = {});
  Status Remove(std::string_view key, std::string_view tenant = {});

  // --- Registered memory ------------------------------------------------------------------
  // Registrations nest: the same range twice needs two unregisters. The memory must stay
  // mapped until then. Unregister takes the range away from later calls at once and waits for
  // calls that run and for holds (MemoryHold). Of what was registered at `data`, or with that
  // size, the most recent goes. kNotFound: there is none. kTransport: they did not end in time; the
  // range is registered as before.
  virtual Status RegisterBuffer(void* data, size_t size) = 0;
  virtual Status UnregisterBuffer(void* data, std::optional<size_t> size = std::nullopt) = 0;
  // Ends every registration that reaches into [data, data + size), in the same way, before that
  // memory goes away; after Close too. Ok when there was none.
  virtual Status UnregisterWithin(const void* data, size_t size) = 0;
  // Whether [data, data + size) lies in one registered range or pool lease. Stays true for as
  // long as a MemoryHold that is older than the question. Never true once the store is closed.
  virtual bool IsRegistered(const void* data, size_t size) const = 0;
  // Whether it lies in one that values may be read into: not in memory that was mapped for
  // reading only when it was registered.
  virtual bool IsWritable(const void* data, size_t size) const = 0;
  // The pool of local_buffer_size bytes. An empty optional: exhausted now.
  virtual uint64_t LocalPoolCapacity() const = 0;
  virtual std::optional<MutableBytes> LocalPoolTryAcquire(size_t size) = 0;
  virtual void LocalPoolRelease(MutableBytes lease) = 0;

  // --- Lifecycle and views ----------------------------------------------------------------
  virtual std::string Hostname() const = 0;  // "host:port" of the node port.
  virtual std::string NodeName() const = 0;  // "stable_id:epoch".
  // One heartbeat now; the background one goes on. `expires_at_ms`, milliseconds since 1970: when
  // the lease would end if this was the last one. How long that is from now is how long this and
  // all later heartbeats renew it for. kInvalidArgument: it is not after now. kMetadata: the
  // service was not reached; a time that was given counts all the same. kUnsupported for a store
  // that is not a node itself.
  virtual Status Heartbeat(std::optional<uint64_t> expires_at_ms = std::nullopt) = 0;
  // The own segments; with `all` also those of the other nodes, with their usage as of the last
  // heartbeats. For these the metadata service is asked, within its timeouts; while it is away, as
  // this node has last heard of them.
  virtual std::vector<SegmentInfo> ListSegments(bool all) = 0;
  // standby | active | draining. While the metadata service is away the others hear of it once it
  // is back; but active has to be told first. kMetadata: it was not, and the state is what it was.
  virtual Status SetState(std::string_view state) = 0;
  // These five are kUnsupported for a store that is not a node itself. The first three take effect
  // without the metadata service: while it is away, other nodes hear of them once it is back.
  // Offers another segment, "<local_segment_name>-ext-<n>". kNoSpace: the memory cannot be had.
  virtual Result<SegmentInfo> ExpandLocalMemory(uint64_t bytes);
  // No new copies go there, and what is there moves as far as there is room elsewhere.
  // kNotFound: no such segment here. kInvalidState: the last active one.
  virtual Status DrainSegment(const std::string& name);
  // True: the segment is gone. False: something is still in it. kInvalidState: not draining.
  virtual Result<bool> RetireSegment(const std::string& name);
  // Enters draining and moves this node's replicas to other owners; returns how many left.
  // kNoSpace, with what remains: not enough writable placement targets.
  virtual Result<uint64_t> EvacuateOwnedReplicas();
  // Asks the live standby of the same stable_id (the one with the epoch, or the newest) to take
  // over. `deadline_ms`: when it has to be active by, milliseconds since 1970; less than a time
  // after 1973 would be counts from now. Without one, a lease from now, at most 30 s.
  // kInvalidArgument: it is over. kInvalidState: no such standby. kMetadata: it cannot be asked.
  virtual Result<HandoffPlan> PlanHandoff(std::optional<uint64_t> successor_epoch,
                                          std::optional<uint64_t> deadline_ms);
  // The policy of a tenant in the whole cluster (tenant_policy.h). Set returns its version; when it
  // returns, every node that answers follows the policy. `expected_version`, 0 for none: kConflict
  // unless that is the one in force. kInvalidArgument: a tenant that is empty or too long.
  // kUnsupported: a policy that no node follows, or a store that is not a node itself. kMetadata:
  // the service did not answer. Get and Delete, kNotFound: the tenant has none.
  virtual Result<uint64_t> SetTenantPolicy(std::string_view tenant, const TenantPolicy& policy,
                                           std::optional<uint64_t> expected_version = std::nullopt);
  virtual Result<TenantPolicyRecord> GetTenantPolicy(std::string_view tenant);
  virtual Status DeleteTenantPolicy(std::string_view tenant,
                                    std::optional<uint64_t> expected_version = std::nullopt);
  virtual std::string MetricsText() = 0;  // Prometheus text format 0.0.4.
  // Counts a call that was refused before a method of the store was called for it: the thread's
  // ApiScope has its name and its refused items (observability.h).
  virtual void CountRefused() {}
  // Whether calls can be served: kInvalidState after Close; kStaleEpoch when another process has
  // this node's name by now; of a daemon's client, what the daemon says, or kTransport.
  virtual Status CheckHealth() { return closed() ? Status(InvalidState("closed")) : Ok(); }
  // Of a daemon's client: calls about the own node are kUnsupported, and there are no segments.
  virtual bool is_dummy() const { return false; }

 protected:
  friend class MemoryHold;
  // A hold begins; what its end has to give back.
  virtual int BeginHold() = 0;
  virtual void EndHold(int hold) = 0;
};

}  // namespace mooncake

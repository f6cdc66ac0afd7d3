// DummyStore: the Store of a process that leaves being a node to a daemon on its host.
//
// Values never travel through the daemon's calls: what is put is read by the daemon from memory
// that the client registered (or, for any other memory, from a staging region that the client
// copies to), and what is got is copied by the client out of the daemon's memory. So the daemon
// writes to no memory of the client's, whatever happens to either (docs/adr).
#pragma once

#include <map>
#include <memory>

#include "base/gate.h"
#include "client/dummy/dummy_get.h"
#include "client/dummy/dummy_put.h"
#include "client/dummy/link.h"
#include "client/memory_registry.h"
#include "mooncake/store.h"

namespace mooncake::client {

class DummyStore final : public Store {
 public:
  static Result<std::unique_ptr<Store>> Open(const DummyConfig& config);
  DummyStore(const DummyConfig& config, std::unique_ptr<Runtime> runtime,
             std::unique_ptr<Link> link);
  ~DummyStore() override;

  void Close() override;
  bool closed() const override { return gate_.closed(); }
  std::vector<Status> PutMany(std::span<const PutItem> items, const PutOptions& options) override;
  std::vector<Result<uint64_t>> GetMany(std::span<const GetItem> items,
                                        std::string_view tenant) override;
  std::vector<Result<uint64_t>> GetManyAllocated(std::span<const std::string_view> keys,
                                                 std::string_view tenant,
                                                 const AllocateTarget& allocate) override;
  std::vector<Result<uint64_t>> GetRanges(std::span<const RangeItem> items,
                                          std::string_view tenant) override;
  std::vector<Result<Existence>> ExistMany(std::span<const std::string_view> keys,
                                           std::string_view tenant) override;
  std::vector<Status> RemoveMany(std::span<const std::string_view> keys,
                                 std::string_view tenant) override;
  Result<uint64_t> GetSize(std::string_view key, std::string_view tenant) override;
  Result<RouteInfo> QueryRoute(std::string_view key, std::string_view tenant) override;
  Result<uint64_t> RemoveAll(std::string_view tenant) override;

  Status RegisterBuffer(void* data, size_t size) override;
  Status UnregisterBuffer(void* data, std::optional<size_t> size) override;
  Status UnregisterWithin(const void* data, size_t size) override;
  bool IsRegistered(const void* data, size_t size) const override;
  // All memory that can be registered is writable.
  bool IsWritable(const void* data, size_t size) const override { return IsRegistered(data, size); }
  uint64_t LocalPoolCapacity() const override { return 0; }
  std::optional<MutableBytes> LocalPoolTryAcquire(size_t) override { return std::nullopt; }
  void LocalPoolRelease(MutableBytes) override {}

  std::string Hostname() const override { return config_.server_address; }
  std::string NodeName() const override { return link_->node(); }
  Status Heartbeat(std::optional<uint64_t> expires_at_ms) override;
  std::vector<SegmentInfo> ListSegments(bool all) override;
  Status SetState(std::string_view state) override;
  std::string MetricsText() override;
  Status CheckHealth() override;
  bool is_dummy() const override { return true; }

 protected:
  int BeginHold() override { return gate_.Enter(); }
  void EndHold(int hold) override { gate_.Leave(hold); }

 private:
  std::vector<Result<uint64_t>> Read(const GetWanted& wanted, std::string_view tenant);

  // Takes a registration of `data` away, as UnregisterBuffer does, and returns it with its
  // allocation.
  struct Removed {
    RegisteredRange range;
    uint64_t allocation = 0;
  };
  Result<Removed> RemoveRange(const void* data, std::optional<size_t> size);
  // As it was, after calls that may use it did not end.
  void Restore(const Removed& removed);
  // Lets the daemon forget an allocation of which nothing is registered any more.
  void ForgetUnused(uint64_t allocation);

  // What was registered around a range, and where the daemon has it.
  std::optional<RegionRange> RegionOf(const void* data, size_t size) const;

  const DummyConfig config_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Link> link_;
  base::Gate gate_;
  Staging staging_;
  PlaceHints hints_;
  base::Mutex register_mu_;  // One registration changes at a time.

  mutable base::Mutex mu_;
  // By allocation: what was registered of it. Regions are whole allocations.
  std::map<uint64_t, std::unique_ptr<RangeTable>> registered_ MC_GUARDED_BY(mu_);
};

}  // namespace mooncake::client

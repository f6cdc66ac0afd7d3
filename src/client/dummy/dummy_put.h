// Putting values through a daemon: where the bytes of each value lie so that the daemon can read
// them. In order of preference: where the caller registered them, inside the message when they
// are few, in a staging region that they are copied to.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/extent_allocator.h"
#include "base/mutex.h"
#include "client/dummy/link.h"
#include "client/dummy/messages.h"
#include "mooncake/store.h"

namespace mooncake::client {

// Memory of the client's own that the daemon can read. Thread-safe.
class Staging {
 public:
  explicit Staging(Link& link) : link_(link) {}

  // A range to copy to. Given back by the destructor.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    uint64_t region = 0;
    uint64_t offset = 0;
    MutableBytes bytes;

   private:
    friend class Staging;
    Staging* staging_ = nullptr;
    std::unique_ptr<MappedMemory> own_;  // A value larger than the shared region.
  };
  // From the shared region; an empty optional: it is full now.
  Result<std::optional<Lease>> TryLease(uint64_t size);
  // A region for this value alone.
  Result<Lease> LeaseAlone(uint64_t size);

 private:
  Status OpenLocked() MC_REQUIRES(mu_);

  Link& link_;
  base::Mutex mu_;
  std::unique_ptr<MappedMemory> memory_ MC_GUARDED_BY(mu_);
  std::unique_ptr<allocator::ExtentAllocator> space_ MC_GUARDED_BY(mu_);
  std::atomic<uint64_t> next_region_{2};
};

// One call with some of a batch's values.
class DummyPut {
 public:
  using RegionOf = std::function<std::optional<std::pair<uint64_t, uint64_t>>(const void*, size_t)>;

  DummyPut(Link& link, Staging& staging, const PutOptions& options);
  // False: the call is full without it.
  Result<bool> Add(size_t index, const PutItem& item, const RegionOf& region_of);
  // Fills the statuses of what was added. The item's memory is read until then.
  void Send(std::vector<Status>* statuses);

 private:
  struct Piece {
    uint64_t region = 0;
    uint64_t offset = 0;
    ConstBytes bytes;
  };
  Result<bool> Stage(std::vector<Piece>& pieces, uint64_t bytes);

  Link& link_;
  Staging& staging_;
  daemon_v1::PutRequest request_;
  std::vector<size_t> indices_;
  std::vector<Staging::Lease> leases_;
  bool uses_regions_ = false;
};

}  // namespace mooncake::client

// Putting values through a daemon: where the bytes of each value lie so that the daemon can read
// them. In order of preference: where the caller registered them, inside the message when they
// are few, in a staging region that they are copied to.
#pragma once

#include <google/protobuf/arena.h>

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

// Registered memory, and where the daemon finds it.
struct RegionRange {
  ConstBytes memory;
  uint64_t region = 0;
  uint64_t offset = 0;  // Of the memory's first byte.
};

// One call with some of a batch's values.
class DummyPut {
 public:
  // What was registered around a range. Empty: it is not registered.
  using RegionOf = std::function<std::optional<RegionRange>(const void*, size_t)>;

  // `values`: about how many will be added.
  DummyPut(Link& link, Staging& staging, const PutOptions& options, size_t values);
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
  void FillPolicy(const ReplicateConfig& replicate);
  bool FindRegion(Piece& piece, const RegionOf& region_of);
  Result<bool> Stage(uint64_t bytes);

  static constexpr size_t kMessageBytes = 16 << 10;  // Of a batch of the usual size.

  Link& link_;
  Staging& staging_;
  alignas(8) char messages_[kMessageBytes];
  google::protobuf::Arena arena_;
  daemon_v1::PutRequest& request_;
  RegionRange last_;           // Most values of a batch come from one.
  std::vector<Piece> pieces_;  // Of the value that is being added.
  std::vector<size_t> indices_;
  std::vector<Staging::Lease> leases_;
  bool uses_regions_ = false;
};

}  // namespace mooncake::client

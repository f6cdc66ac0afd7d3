// Reading for a client that copies for itself: finds each value, or brings it into the daemon's
// memory, and says where it lies. Held by a Lease until the client has copied.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "client/local_store.h"
#include "daemon/scratch.h"

namespace mooncake::daemon {

// Where a value, or a range of one, can be read.
struct Placed {
  uint64_t area = 0;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t checksum = 0;
  bool checked = false;  // Whether there is a checksum: of whole values.
  ConstBytes bytes;      // The same, as the daemon sees it.
};

// What has to stay where it is. Dropping it gives everything back.
struct Lease {
  std::vector<node::ExtentPin> extents;
  std::vector<hotcache::HotCache::Pin> slots;
  std::vector<Scratch::Buffer> buffers;
  uint64_t expires_ms = 0;
  bool empty() const { return extents.empty() && slots.empty() && buffers.empty(); }
};

struct LeaseRequest {
  std::span<const std::string_view> keys;
  std::string_view tenant;
  std::span<const uint64_t> limits;   // The largest value wanted, or the size of the range.
  std::span<const uint64_t> offsets;  // Empty, or where the ranges begin.
  uint32_t domain = 0;                // Of the hot cache: the worker scope.
  uint64_t deadline_ms = 0;
};

// One result per key, in order. kBackPressure: no scratch memory now.
std::vector<Result<Placed>> LeaseValues(client::LocalStore& store, Scratch& scratch,
                                        const LeaseRequest& request, Lease* lease);

}  // namespace mooncake::daemon

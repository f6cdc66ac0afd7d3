// Which memory a store may touch through raw pointers: ranges that callers registered, and the
// local pool that BufferPool takes its leases from.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "allocator/extent_allocator.h"
#include "base/gate.h"
#include "base/mutex.h"
#include "mooncake/bytes.h"
#include "mooncake/result.h"
#include "runtime/mapped_memory.h"
#include "runtime/runtime.h"

namespace mooncake::client {

// One registration.
struct RegisteredRange {
  const void* data = nullptr;
  size_t size = 0;
  bool writable = true;  // Whether values may be read into it.
};

// Registered ranges by base address. Registrations of one range nest; ranges may overlap.
// Thread-safe.
class RangeTable {
 public:
  // kInvalidArgument: null, empty, wrapping around the address space, or not readable memory.
  Status Add(const void* data, size_t size);
  // The same for memory that is known to be there.
  void AddOwn(const RegisteredRange& range);
  // The most recent registration of this base, or of this base and size, goes. kNotFound: none.
  Result<RegisteredRange> Remove(const void* data, std::optional<size_t> size = std::nullopt);
  // All registrations that reach into the range go.
  std::vector<RegisteredRange> RemoveWithin(const void* data, size_t size);
  // A registered range that the range lies within, a writable one if asked. Empty: there is none.
  std::optional<ConstBytes> Find(const void* data, size_t size, bool writable = false) const;
  bool Contains(const void* data, size_t size, bool writable = false) const {
    return Find(data, size, writable).has_value();
  }
  size_t size() const;

 private:
  // An immutable snapshot: every pointer call looks here, changes are rare.
  struct Ranges {
    // By base, oldest first.
    std::map<uintptr_t, std::vector<RegisteredRange>> by_base;
    size_t largest = 0;  // No range is larger; bounds the search for overlapping ones.
  };
  base::Mutex mu_;  // One change at a time.
  std::atomic<std::shared_ptr<const Ranges>> ranges_{std::make_shared<const Ranges>()};
};

// A registered pool of fixed size, handed out in slices. Thread-safe.
class LocalPool {
 public:
  explicit LocalPool(MappedMemory memory);
  static Result<std::unique_ptr<LocalPool>> Open(uint64_t size, uint64_t hugepage_bytes);
  uint64_t capacity() const { return memory_.bytes().size(); }
  std::optional<MutableBytes> TryAcquire(size_t size);
  void Release(MutableBytes lease);
  // Whether the range lies within one slice that is out now.
  bool Contains(const void* data, size_t size) const { return leases_.Contains(data, size); }

 private:
  MappedMemory memory_;
  allocator::ExtentAllocator allocator_;
  RangeTable leases_;
};

// What an unregister says that finds nothing.
Error NotRegistered(const void* data, std::optional<size_t> size);

// Waits until every caller has left who is inside the gate now. kTransport: not by `limit_ms`, or
// the caller was interrupted. Without locks.
Status AwaitCallers(base::Gate& gate, Runtime& runtime, uint64_t limit_ms);

}  // namespace mooncake::client

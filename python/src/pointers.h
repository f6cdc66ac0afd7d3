// Raw addresses that callers hand in: used when they are registered, never dereferenced else.
#pragma once

#include <Python.h>

#include <cstdint>
#include <vector>

#include "store_object.h"

namespace mooncake::python {

// What a call does with memory: stores what is there, or reads a value into it.
enum class Use { kSource, kTarget };

// Whether a call may touch [address, address + size). Nothing to touch is always fine. True for no
// longer than a MemoryHold that the call took before lasts.
bool MayTouch(const Store& store, uint64_t address, uint64_t size, Use use);

// What a read or a batch item gets whose memory may not be touched: of the published codes the one
// for "not allowed now", as in CodeOf.
inline constexpr long kRefusedCode = static_cast<long>(ErrorCode::kInvalidState);

// A rate-limited line that names the range. Call with or without the GIL.
void LogRefused(const char* method, uint64_t address, uint64_t size, Use use);

inline ConstBytes SourceAt(uint64_t address, uint64_t size) {
  return BytesAt(reinterpret_cast<const void*>(address), size);
}
inline MutableBytes TargetAt(uint64_t address, uint64_t size) {
  return MutableBytesAt(reinterpret_cast<void*>(address), size);
}

// A list of ints.
PyObject* ListFromNumbers(const std::vector<int64_t>& numbers);

// What batch items that were sent have reported, put where they belong: `sent[i]` is the position
// in `numbers` of result i. False: an exception is set.
bool FillStatuses(const Call& call, const std::vector<size_t>& sent,
                  const std::vector<Status>& statuses, std::vector<int64_t>* numbers);
bool FillSizes(const Call& call, const std::vector<size_t>& sent,
               const std::vector<Result<uint64_t>>& sizes, std::vector<int64_t>* numbers);

// The lists of a batch of raw buffers: keys, ptrs, sizes and what they hold.
struct RawBatch {
  Ref keys;
  Ref ptrs;
  Ref sizes;
};

// From the arguments: three lists, or one list of (key, ptr, size). False: an exception is set.
bool RawBatchFrom(const char* method, PyObject* keys, PyObject* ptrs, PyObject* sizes,
                  RawBatch* batch);

}  // namespace mooncake::python

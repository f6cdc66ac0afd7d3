// What the trace consists of: spans, one for a call and one for each part of it that took part in
// the call's time, and the lines about the items of batches.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace mooncake::obs {

// The views are of constants.
struct TraceSpan {
  std::string_view name;       // "store.get", "data.transfer_read": its phase, and what it did.
  std::string_view operation;  // The call that it belongs to, as it was made.
  std::string_view flow;       // put, get, remove, control or background.
  std::string_view result;     // ok, miss, conflict or error.
  std::string tenant;
  std::string backend;   // Of spans of the metadata service.
  uint64_t request = 0;  // The call's; never 0 in a span that is written.
  uint64_t id = 0;
  uint64_t parent = 0;  // 0: the call itself.
  uint64_t start_unix_ns = 0;
  uint64_t duration_ns = 0;
  uint64_t item_count = 0;
  uint64_t bytes_in = 0;
  uint64_t bytes_out = 0;
  uint64_t peer_count = 0;  // Other nodes that were asked.

  // "api", "control", "data", "metadata", "python" or "background".
  std::string_view phase() const {
    const std::string_view first = name.substr(0, name.find('.'));
    return first == "store" ? "api" : first;
  }
};

struct TracedItem {
  std::string_view key;
  uint64_t size = 0;      // What the caller offered: the value's size, or the room for it.
  int64_t read_len = -1;  // -1: nothing was read.
  int32_t status = 0;     // 0, or the negative code that the caller gets.
};

struct TracedItems {
  std::string_view operation;
  std::string_view tenant;
  std::string_view domain;
  std::string_view object_set;
  std::string_view runtime_id;
  uint64_t unix_ms = 0;
  std::span<const TracedItem> items;
};

}  // namespace mooncake::obs

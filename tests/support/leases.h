// Leases and times for tests of the metadata services.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "metadata/metadata_store.h"
#include "runtime/runtime.h"

namespace mooncake::testing {

// What a node asks for; its epoch is for the service to give.
inline LeaseRecord Named(const std::string& stable_id) {
  LeaseRecord record;
  record.id.stable_id = stable_id;
  record.endpoint = "h:1";
  return record;
}

inline uint64_t ElapsedMs(Runtime& runtime, const std::function<void()>& body) {
  const uint64_t start_ms = runtime.NowMs();
  body();
  return runtime.NowMs() - start_ms;
}

}  // namespace mooncake::testing

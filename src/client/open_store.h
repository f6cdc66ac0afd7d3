// The composition of a real store, for those who need more of it than the Store interface.
#pragma once

#include <memory>

#include "client/local_store.h"
#include "mooncake/config.h"

namespace mooncake::client {

struct LocalStoreOptions {
  bool shared_segments = false;  // Other processes of this host may map them to read.
  // Joins as a standby, which the caller makes active later. It succeeds nobody.
  bool activated_later = false;
};

// As Store::Open.
Result<std::unique_ptr<LocalStore>> OpenLocalStore(const StoreConfig& config,
                                                   const LocalStoreOptions& options);

// What SetInterruptCheck's function says.
bool InterruptWanted();

}  // namespace mooncake::client

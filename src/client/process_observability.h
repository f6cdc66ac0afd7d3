// What opening a store starts for its process: the trace and the metrics server.
#pragma once

#include "mooncake/config.h"

namespace mooncake::client {

// Failures are logged, not returned: neither is worth a store that does not open.
void ObserveFrom(const StoreConfig& config);

}  // namespace mooncake::client

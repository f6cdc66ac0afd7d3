// What opening a store starts for its process: the trace and the metrics server.
#pragma once

#include "mooncake/config.h"
#include "mooncake/result.h"

namespace mooncake::client {

// kInvalidArgument: a file of the trace or the log cannot be written. What fails otherwise is
// logged, not returned: it is not worth a store that does not open.
Status TraceFrom(const StoreConfig& config);
void ServeMetricsFrom(const StoreConfig& config);

}  // namespace mooncake::client

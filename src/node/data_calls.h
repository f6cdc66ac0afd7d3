// The served side of requests that carry values: put, write, get, read. Each is one ServerCall;
// what it pins or reserves is given back when it is destroyed, at whatever point that happens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "node/core.h"
#include "node/wire.h"
#include "transfer/transport.h"

namespace mooncake::node {

// All return nullptr for a malformed request.
std::unique_ptr<ServerCall> AcceptPut(Core& core, const IncomingRequest& request);
std::unique_ptr<ServerCall> AcceptWrite(Core& core, const IncomingRequest& request);
std::unique_ptr<ServerCall> AcceptGet(Core& core, const IncomingRequest& request);
std::unique_ptr<ServerCall> AcceptRead(Core& core, const IncomingRequest& request);

}  // namespace mooncake::node

// Questions and changes that move no values: existence, routes, removal.
#pragma once

#include <span>
#include <vector>

#include "mooncake/store.h"
#include "node/core.h"

namespace mooncake::node {

// Ok: the key has a value; kNotFound: it has none.
std::vector<Status> ExistKeys(Core& core, std::span<const KeyRef> refs, uint64_t deadline_ms);
std::vector<Result<Route>> FindRoutes(Core& core, std::span<const KeyRef> refs,
                                      uint64_t deadline_ms);
std::vector<Status> RemoveKeys(Core& core, std::span<const KeyRef> refs, uint64_t deadline_ms);
// Every key of the scope, at every authority. An authority that cannot be reached is an error.
Result<uint64_t> RemoveScope(Core& core, const routing::Scope& scope, uint64_t deadline_ms);

}  // namespace mooncake::node

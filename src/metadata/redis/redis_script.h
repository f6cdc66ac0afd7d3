// The script that runs in the Redis server: every operation of MetadataStore in one round trip,
// with the server's clock. The rules are those of lease_rules.h.
#pragma once

namespace mooncake::metadata {

// KEYS[1] is "{keyspace}/"; ARGV[1] names the operation, the rest are its arguments.
extern const char* const kRedisScript;

}  // namespace mooncake::metadata

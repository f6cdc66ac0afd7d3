// Scopes and key hashes. tenant, domain, object_set and key are four separate fields end to
// end; each is hashed with its length, so no spelling of one can reach another.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mooncake::routing {

struct Scope {
  std::string tenant = "default";
  std::string domain = "default";
  std::string object_set = "default";
  auto operator<=>(const Scope&) const = default;
};

// The seed that stands for a scope in KeyHash: XXH3 over the three length-prefixed fields.
uint64_t ScopeSeed(const Scope& scope);

// The mixed 64-bit hash of (scope, key).
uint64_t KeyHash(uint64_t scope_seed, std::string_view key);

// The scope as one string, injective: each field's length in decimal, ':', the field. Used as a
// map key, never parsed.
std::string ScopeText(const Scope& scope);

// What query_route shows: "<tenant>::<key>" in the default domain and object set, else
// "<tenant>::ns/<domain>/<object_set>/<key>" with each component percent-encoded (digits,
// letters and the three characters "-_." stay; every other byte is %XX in upper case).
std::string RouteKeyText(const Scope& scope, std::string_view key);

}  // namespace mooncake::routing

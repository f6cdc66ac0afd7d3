#include "node/wire.h"

#include "mooncake/store.h"

namespace mooncake::node {

namespace {
// By the byte that stands for them.
constexpr ItemCode kPresences[] = {CodeOf(ErrorCode::kNotFound),
                                   kItemOk,
                                   kItemRetryLater,
                                   kItemWrongAuthority,
                                   kItemEvicted,
                                   kItemOwnerGone,
                                   kItemOtherScope};
}  // namespace

namespace {
constexpr int kReplicasMax = 64;
constexpr int kScopesPerMessageMax = 65'536;
}  // namespace

void AddKey(std::string_view key, v1::Keys* keys) {
  keys->mutable_blob()->append(key);
  keys->add_sizes(static_cast<uint32_t>(key.size()));
}

bool ReadKeys(const v1::Keys& keys, std::vector<std::string_view>* out) {
  if (static_cast<size_t>(keys.sizes_size()) > kItemsPerMessageMax) return false;
  std::string_view rest = keys.blob();
  out->clear();
  out->reserve(keys.sizes_size());
  for (uint32_t size : keys.sizes()) {
    if (size == 0 || size > kKeySizeMax || size > rest.size()) return false;
    out->push_back(rest.substr(0, size));
    rest.remove_prefix(size);
  }
  return rest.empty();
}

void WriteScope(const routing::Scope& scope, v1::Scope* out) {
  out->set_tenant(scope.tenant);
  out->set_domain(scope.domain);
  out->set_object_set(scope.object_set);
}

routing::Scope ReadScope(const v1::Scope& scope) {
  return {scope.tenant(), scope.domain(), scope.object_set()};
}

void WritePlace(const Place& place, const NameTable& names, v1::Replica* out) {
  out->set_owner(names.NameOf(place.owner));
  out->set_segment(place.segment);
  out->set_offset(place.offset);
  out->set_generation(place.generation);
}

std::optional<Place> ReadPlace(const v1::Replica& replica, NameTable& names) {
  if (!ParseNodeName(replica.owner()).ok()) return std::nullopt;
  const std::optional<NameIndex> owner = names.IndexOf(replica.owner());
  if (!owner) return std::nullopt;
  return Place{*owner, replica.segment(), replica.offset(), replica.generation()};
}

void WriteRoute(std::string_view key, const Route& route, const NameTable& names, v1::Route* out) {
  out->set_key(key.data(), key.size());
  out->set_version(route.version);
  out->set_size(route.size);
  out->set_checksum(route.checksum);
  out->set_has_checksum(route.has_checksum);
  out->set_soft_pin(route.soft_pin);
  for (const Place& place : route.replicas) WritePlace(place, names, out->add_replicas());
}

std::optional<Route> ReadRoute(const v1::Route& route, NameTable& names) {
  if (route.replicas_size() > kReplicasMax || route.version() > kVersionMax) return std::nullopt;
  Route out{route.version(),      route.size(),     route.checksum(),
            route.has_checksum(), route.soft_pin(), {}};
  for (const v1::Replica& replica : route.replicas()) {
    const std::optional<Place> place = ReadPlace(replica, names);
    if (!place) return std::nullopt;
    out.replicas.push_back(*place);
  }
  return out;
}

uint32_t ScopeColumn::Add(ScopeIndex scope) {
  auto [found, fresh] = known_.try_emplace(scope, static_cast<uint32_t>(known_.size()));
  if (fresh) {
    WriteScope(table_.ScopeOf(scope), out_->Add());
    encoded_bytes_ += out_->rbegin()->ByteSizeLong();
  }
  return found->second;
}

std::vector<ScopeTable::Entry> ReadScopes(
    const google::protobuf::RepeatedPtrField<v1::Scope>& scopes, ScopeTable& table) {
  std::vector<ScopeTable::Entry> entries;
  if (scopes.size() > kScopesPerMessageMax) return entries;
  for (const v1::Scope& scope : scopes) {
    const auto entry = table.Intern(ReadScope(scope));
    if (!entry) return {};
    entries.push_back(*entry);
  }
  return entries;
}

uint64_t WriteKeyedRoute(const KeyedRoute& keyed, ScopeColumn& scopes, const NameTable& names,
                         v1::Route* out) {
  const uint64_t before = scopes.encoded_bytes();
  WriteRoute(keyed.key, keyed.route, names, out);
  out->set_scope(scopes.Add(keyed.ref.scope));
  if (keyed.published_ms != 0) out->set_published_ms(keyed.published_ms);
  return out->ByteSizeLong() + scopes.encoded_bytes() - before;
}

bool ReadKeyedRoute(const v1::Route& route, const std::vector<ScopeTable::Entry>& scopes,
                    NameTable& names, KeyedRoute* out) {
  if (route.scope() >= scopes.size()) return false;
  if (route.key().empty() || route.key().size() > kKeySizeMax) return false;
  std::optional<Route> read = ReadRoute(route, names);
  if (!read) return false;
  out->route = *std::move(read);
  out->key = route.key();
  out->published_ms = route.published_ms();
  out->ref = MakeKeyRef(scopes[route.scope()], out->key);
  return true;
}

char PresenceOf(ItemCode code) {
  for (size_t i = 0; i < std::size(kPresences); ++i) {
    if (kPresences[i] == code) return static_cast<char>(i);
  }
  return 0;
}

ItemCode CodeOfPresence(char presence) {
  const auto index = static_cast<unsigned char>(presence);
  return index < std::size(kPresences) ? kPresences[index] : kPresences[0];
}

void StoreChecksum(uint64_t checksum, std::byte* out) {
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    out[i] = static_cast<std::byte>(checksum >> (8 * i));
  }
}

uint64_t LoadChecksum(const std::byte* in) {
  uint64_t checksum = 0;
  for (size_t i = 0; i < kChecksumBytes; ++i) {
    checksum |= uint64_t{std::to_integer<uint8_t>(in[i])} << (8 * i);
  }
  return checksum;
}

}  // namespace mooncake::node

// Translation between the node's types and the messages of node.proto. Everything that is read
// here came from a peer and is checked before it is used.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/v1/node.pb.h"
#include "node/route_table.h"
#include "node/types.h"
#include "transfer/transport.h"

namespace mooncake::node {

enum class MessageType : uint16_t {
  kPing = 1,
  kPut = 2,
  kGet = 3,
  kExist = 4,
  kRoute = 5,
  kRead = 6,
  kWrite = 7,
  kPublish = 8,
  kRemove = 9,
  kRemoveAll = 10,
  kNotice = 11,
  kCheck = 12,
  kPull = 13,
  kInventory = 14,
  kMirror = 15,
  kMigrate = 16,
  kQuotaCharge = 17,
  kQuotaGrant = 18,
  kQuotaSurvey = 19,
};

// Of the protocol between nodes, told in the lease. Nodes of one major version interoperate;
// what came with a minor version is asked only of nodes that have it.
inline constexpr uint32_t kMinorWithMigration = 1;
inline constexpr uint32_t kMinorWithQuotas = 2;
inline constexpr uint32_t kProtocolMinor = 2;

// Of one message; batches are cut into several.
inline constexpr size_t kItemsPerMessageMax = 8192;
inline constexpr uint64_t kPayloadPerMessageMax = 1ULL << 30;
// Of the keys or routes in one message: half of what a transport takes, as there are other columns
// and the last one added may be large.
inline constexpr uint64_t kKeyBytesPerMessageMax = kMessageSizeMax / 2;
inline constexpr size_t kChecksumBytes = 8;

// Whether a message of that many items and encoded bytes takes no more.
constexpr bool IsFull(size_t items, uint64_t bytes) {
  return items >= kItemsPerMessageMax || bytes >= kKeyBytesPerMessageMax;
}

void AddKey(std::string_view key, v1::Keys* keys);
// False: sizes do not add up, an empty or oversized key, or too many.
bool ReadKeys(const v1::Keys& keys, std::vector<std::string_view>* out);

void WriteScope(const routing::Scope& scope, v1::Scope* out);
routing::Scope ReadScope(const v1::Scope& scope);

// Between a Place and its message. `names` resolves the owner; nullopt: malformed owner name.
void WritePlace(const Place& place, const NameTable& names, v1::Replica* out);
std::optional<Place> ReadPlace(const v1::Replica& replica, NameTable& names);

void WriteRoute(std::string_view key, const Route& route, const NameTable& names, v1::Route* out);
// nullopt: a bad owner name or too many replicas.
std::optional<Route> ReadRoute(const v1::Route& route, NameTable& names);

// Collects the scopes of a message that carries keys of many; Add returns the index to store.
class ScopeColumn {
 public:
  ScopeColumn(const ScopeTable& table, google::protobuf::RepeatedPtrField<v1::Scope>* out)
      : table_(table), out_(out) {}
  uint32_t Add(ScopeIndex scope);
  uint64_t encoded_bytes() const { return encoded_bytes_; }

 private:
  uint64_t encoded_bytes_ = 0;
  const ScopeTable& table_;
  google::protobuf::RepeatedPtrField<v1::Scope>* out_;
  std::unordered_map<ScopeIndex, uint32_t> known_;
};
// Interns a message's scopes. Empty: too many or the table is full.
std::vector<ScopeTable::Entry> ReadScopes(
    const google::protobuf::RepeatedPtrField<v1::Scope>& scopes, ScopeTable& table);

// Routes of many scopes, as in pull, inventory, mirror and check messages. Returns the encoded
// bytes that this adds to the message.
uint64_t WriteKeyedRoute(const KeyedRoute& keyed, ScopeColumn& scopes, const NameTable& names,
                         v1::Route* out);
// False: a malformed entry.
bool ReadKeyedRoute(const v1::Route& route, const std::vector<ScopeTable::Entry>& scopes,
                    NameTable& names, KeyedRoute* out);

// Between the code of a look-up and its byte in an ExistReply.
char PresenceOf(ItemCode code);
ItemCode CodeOfPresence(char presence);

void StoreChecksum(uint64_t checksum, std::byte* out);
uint64_t LoadChecksum(const std::byte* in);

}  // namespace mooncake::node

#include "metadata/redis/redis_metadata.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <utility>

#include "metadata/lease_rules.h"
#include "metadata/records.h"

namespace mooncake::metadata {
namespace {

Error Unexpected() { return MetadataError("the metadata script gave an answer of a wrong form"); }

Result<uint64_t> Number(const std::string& text) {
  uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || next != end) return Unexpected();
  return number;
}

// The script keeps a lease as "<suspect> <usage> <core>".
struct KeptLease {
  EncodedLease record;
  bool suspect = false;
};

KeptLease SplitLease(const std::string& text) {
  KeptLease lease;
  const size_t usage_end = text.find(' ', 2);
  if (usage_end == std::string::npos) return lease;  // Without a core it cannot be decoded.
  lease.suspect = text[0] == '1';
  lease.record.usage = text.substr(2, usage_end - 2);
  lease.record.core = text.substr(usage_end + 1);
  return lease;
}

RedisAddress WithCredentials(RedisAddress address, const RedisOptions& options) {
  if (!address.password.empty()) return address;
  if (address.username.empty()) address.username = options.username;
  address.password = options.password;
  return address;
}

}  // namespace

Result<std::unique_ptr<MetadataStore>> RedisMetadata::Open(std::string_view url,
                                                           const RedisOptions& options,
                                                           Runtime& runtime) {
  MC_TRY(RedisAddress address, ParseRedisUrl(url));
  std::unique_ptr<MetadataStore> store =
      std::make_unique<RedisMetadata>(std::move(address), options, runtime);
  return store;
}

RedisMetadata::RedisMetadata(RedisAddress address, const RedisOptions& options, Runtime& runtime)
    : runtime_(runtime),
      prefix_(fmt::format("{{{}}}/", options.keyspace)),
      pool_(WithCredentials(std::move(address), options), options.timeouts, runtime) {}

std::string RedisMetadata::NewToken() {
  return fmt::format("{:016x}{:016x}", runtime_.Random(), runtime_.Random());
}

Result<std::vector<std::string>> RedisMetadata::Run(const std::vector<std::string>& arguments,
                                                    size_t items_min) {
  MC_TRY(std::vector<std::string> items, pool_.RunScript(prefix_, arguments));
  if (items.empty()) return Unexpected();
  if (items[0] == "ok" && items.size() < items_min) return Unexpected();
  if (items[0] != "ok" && items.size() < 2) return Unexpected();
  return items;
}

Result<NodeId> RedisMetadata::Acquire(const LeaseRecord& record, uint64_t ttl_ms,
                                      std::optional<uint64_t> beside, bool replace) {
  MC_RETURN_IF_ERROR(CheckLease(record, ttl_ms));
  MC_TRY(const EncodedLease encoded, EncodeLease(record));
  const std::string& stable_id = record.id.stable_id;
  MC_TRY(const auto items, Run({"acquire", stable_id, std::to_string(ttl_ms), NewToken(),
                                beside ? std::to_string(*beside) : "", replace ? "1" : "0",
                                encoded.usage, encoded.core},
                               2));
  MC_TRY(const uint64_t epoch, Number(items[1]));
  NodeId id{stable_id, epoch};
  if (items[0] != "ok") return HeldBy(id, SplitLease(items.size() > 2 ? items[2] : "").record);
  return id;
}

Result<RenewResult> RedisMetadata::Renew(const LeaseRecord& record, uint64_t ttl_ms) {
  MC_RETURN_IF_ERROR(CheckLease(record, ttl_ms));
  if (record.id.epoch == 0) return InvalidArgument("a lease without an epoch cannot be renewed");
  MC_TRY(const EncodedLease encoded, EncodeLease(record));
  MC_TRY(const auto items, Run({"renew", record.id.stable_id, std::to_string(ttl_ms), NewToken(),
                                std::to_string(record.id.epoch), encoded.usage, encoded.core},
                               3));
  MC_TRY(const uint64_t number, Number(items[1]));
  if (items[0] == "taken") return TakenByAnother(record.id);
  if (items[0] != "ok") return SupersededBy(record.id, number);
  RenewResult result;
  result.revision = number;
  result.was_suspect = items[2].find('s') != std::string::npos;
  result.recreated = items[2].find('r') != std::string::npos;
  return result;
}

Status RedisMetadata::Release(const NodeId& id, uint32_t instance) {
  MC_RETURN_IF_ERROR(Run({"release", id.ToString(), std::to_string(instance)}, 1));
  return Ok();
}

Result<uint64_t> RedisMetadata::Poll() {
  MC_TRY(const auto items, Run({"poll"}, 2));
  if (items[0] != "ok") return Unexpected();
  return Number(items[1]);
}

Result<MembershipChanges> RedisMetadata::ReadChanges(uint64_t since) {
  MC_TRY(const auto items, Run({"changes", std::to_string(since)}, 3));
  if (items[0] != "ok") return Unexpected();
  MembershipChanges changes;
  MC_TRY(changes.revision, Number(items[1]));
  changes.full = items[2] == "1";
  for (size_t i = 3; i + 1 < items.size(); i += 2) {
    // Somebody wrote a foreign field by hand: no lease of ours.
    Result<NodeId> id = ParseNodeId(items[i]);
    if (!id) continue;
    const KeptLease lease = SplitLease(items[i + 1]);
    AddChange(*id, lease.record, lease.suspect, changes);
  }
  return changes;
}

Status RedisMetadata::ReportSuspect(const NodeId& id) {
  MC_RETURN_IF_ERROR(Run({"suspect", id.ToString()}, 1));
  return Ok();
}

Result<RoutePolicy> RedisMetadata::PutRoutePolicyIfAbsent(const RoutePolicy& policy) {
  MC_TRY(const std::string json, RoutePolicyToJson(policy));
  MC_TRY(const auto items, Run({"policy", json}, 2));
  return RoutePolicyFromJson(items[1]);
}

Result<MetadataStore::Document> RedisMetadata::GetDocument(const std::string& name) {
  MC_RETURN_IF_ERROR(CheckDocument(name, {}));
  MC_TRY(const auto items, Run({"get", name}, 3));
  if (items[0] != "ok") return Unexpected();
  MC_TRY(const uint64_t version, Number(items[1]));
  return Document{version, items[2]};
}

Result<uint64_t> RedisMetadata::PutDocument(const std::string& name, const std::string& text,
                                            uint64_t expected_version) {
  MC_RETURN_IF_ERROR(CheckDocument(name, text));
  MC_TRY(const auto items,
         Run({"put", name, std::to_string(expected_version), NewToken(), text}, 2));
  MC_TRY(const uint64_t version, Number(items[1]));
  if (items[0] == "ok") return version;
  return Conflict(
      fmt::format("document {} has version {}, expected was {}", name, version, expected_version));
}

Result<std::vector<MetadataStore::NamedDocument>> RedisMetadata::ListDocuments(
    const std::string& prefix) {
  MC_RETURN_IF_ERROR(CheckDocument(prefix, {}));
  MC_TRY(const auto items, Run({"list", prefix}, 1));
  if (items[0] != "ok") return Unexpected();
  std::map<std::string, Document> sorted;
  for (size_t i = 1; i + 2 < items.size(); i += 3) {
    if (!items[i].starts_with(prefix)) return Unexpected();  // Callers take it off.
    MC_TRY(const uint64_t version, Number(items[i + 1]));
    sorted[items[i]] = {version, items[i + 2]};
  }
  std::vector<NamedDocument> named;
  named.reserve(sorted.size());
  for (auto& [name, document] : sorted) named.push_back({name, std::move(document)});
  return named;
}

}  // namespace mooncake::metadata

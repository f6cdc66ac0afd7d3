// What a metadata service hands back, and the URLs that lead to one.
#include <gtest/gtest.h>

#include "fuzz/fuzz.h"
#include "metadata/etcd/etcd_url.h"
#include "metadata/net/tls_query.h"
#include "metadata/records.h"
#include "metadata/redis/redis_url.h"
#include "metadata/tenant_policy.h"
#include "node/types.h"

namespace mooncake::metadata {
namespace {

using fuzz::kPassword;
using fuzz::kRight;
using fuzz::Leaks;
using fuzz::RunTarget;
using fuzz::WrongError;

LeaseRecord SampleLease() {
  LeaseRecord record;
  record.id = {"worker:1", 7};
  record.state = NodeState::kActive;
  record.endpoint = "[::1]:4000";
  record.host = "b0f1";
  record.pid = 99;
  record.instance = 5;
  record.slot_bits = 17;
  record.era = 1;
  record.labels = {{"pool", "a"}, {"quote \"", "\\ \n \x01 \xe2\x82\xac"}};
  record.segments = {{"s", UINT64_MAX, 12, NodeState::kOffline}, {"t", 1, 0, NodeState::kActive}};
  return record;
}

// A level of JSON is a byte for the sender and a value with its list for us.
constexpr uint64_t kJsonPerByteMax = 400;

TEST(MetadataFuzz, ALeaseIsReadAsItIsWritten) {
  RunTarget({.samples = {*LeaseToJson(SampleLease()), *LeaseToJson({.id = {"n", 1}})},
             .check =
                 [](const std::string& input) {
                   const Result<LeaseRecord> record = LeaseFromJson(input);
                   if (!record)
                     return WrongError(record.error(), ErrorCode::kMetadata, "malformed");
                   MC_FUZZ_CHECK(!record->id.stable_id.empty() && IsSlotBits(record->slot_bits));
                   const Result<std::string> json = LeaseToJson(*record);
                   MC_FUZZ_CHECK(json.ok());
                   MC_FUZZ_CHECK(LeaseFromJson(*json).value_or({}) == *record);
                   return kRight;
                 },
             .allocated_per_byte_max = kJsonPerByteMax,
             .cost = 2});
}

// The first line is the id, the second the usage, the rest the core.
TEST(MetadataFuzz, ALeaseInPartsIsReadAsItIsWritten) {
  const auto sample = [](const LeaseRecord& record) {
    const EncodedLease encoded = *EncodeLease(record);
    return record.id.ToString() + "\n" + encoded.usage + "\n" + encoded.core;
  };
  RunTarget({.samples = {sample(SampleLease()), sample({.id = {"n", 1}})},
             .check =
                 [](const std::string& input) {
                   const size_t id_end = std::min(input.find('\n'), input.size());
                   const size_t usage_end = std::min(input.find('\n', id_end + 1), input.size());
                   const auto part = [&](size_t begin, size_t end) {
                     return begin < end ? input.substr(begin, end - begin) : std::string();
                   };
                   const Result<NodeId> id = ParseNodeId(part(0, id_end));
                   if (!id) return WrongError(id.error(), ErrorCode::kMetadata, "node id");
                   MC_FUZZ_CHECK(ParseNodeId(id->ToString()).value_or({}) == *id);
                   const EncodedLease encoded{part(usage_end + 1, input.size()),
                                              part(id_end + 1, usage_end)};
                   const Result<LeaseRecord> record = DecodeLease(*id, encoded, true);
                   if (!record)
                     return WrongError(record.error(), ErrorCode::kMetadata, "malformed");
                   MC_FUZZ_CHECK(record->id == *id && record->suspect);
                   const Result<EncodedLease> again = EncodeLease(*record);
                   MC_FUZZ_CHECK(again.ok());
                   MC_FUZZ_CHECK(DecodeLease(*id, *again, true).value_or({}) == *record);
                   return kRight;
                 },
             .allocated_per_byte_max = kJsonPerByteMax,
             .cost = 2});
}

TEST(MetadataFuzz, ARoutePolicyIsReadAsItIsWritten) {
  RunTarget({.samples = {*RoutePolicyToJson({.created_by = "n:1", .created_at_ms = 9}),
                         *RoutePolicyToJson({.route_topk = 3, .slot_bits = 20})},
             .check =
                 [](const std::string& input) {
                   const Result<RoutePolicy> policy = RoutePolicyFromJson(input);
                   if (!policy)
                     return WrongError(policy.error(), ErrorCode::kMetadata, "malformed");
                   const Result<std::string> json = RoutePolicyToJson(*policy);
                   MC_FUZZ_CHECK(json.ok());
                   const RoutePolicy again = RoutePolicyFromJson(*json).value_or({});
                   MC_FUZZ_CHECK(again.route_topk == policy->route_topk &&
                                 again.route_control == policy->route_control &&
                                 again.slot_bits == policy->slot_bits &&
                                 again.created_by == policy->created_by &&
                                 again.created_at_ms == policy->created_at_ms);
                   return kRight;
                 },
             .allocated_per_byte_max = kJsonPerByteMax});
}

TEST(MetadataFuzz, ATenantsPolicyIsReadAsItIsWritten) {
  KnownPolicy limited;
  limited.record.policy = {
      .max_bytes = 1024, .max_objects = UINT64_MAX, .evict_within_tenant = true};
  limited.record.updated_at_ms = 17;
  limited.record.updated_by = "n:1";
  KnownPolicy removed;
  removed.removed = true;
  RunTarget(
      {.samples = {*TenantPolicyToJson("a", limited), *TenantPolicyToJson("b \"", removed)},
       .check =
           [](const std::string& input) {
             const Result<KnownPolicy> policy = TenantPolicyFromJson({7, input});
             if (!policy) return WrongError(policy.error(), ErrorCode::kMetadata, "malformed");
             const TenantPolicy& spec = policy->record.policy;
             const Result<std::string> json = TenantPolicyToJson("a", *policy);
             if (!json) {  // No one of ours writes such a one.
               MC_FUZZ_CHECK(spec.evict_within_tenant && !spec.max_bytes && !spec.max_objects);
               return WrongError(json.error(), ErrorCode::kInvalidArgument, "evict_within_tenant");
             }
             const KnownPolicy again = TenantPolicyFromJson({7, *json}).value_or({});
             MC_FUZZ_CHECK(again.removed == policy->removed && again.record.version == 7 &&
                           again.record.updated_by == policy->record.updated_by &&
                           again.record.policy.max_bytes == spec.max_bytes &&
                           again.record.policy.max_objects == spec.max_objects);
             return kRight;
           },
       .allocated_per_byte_max = kJsonPerByteMax});
}

TEST(MetadataFuzz, StatesAndNodeNamesAreReadAsTheyAreWritten) {
  RunTarget({.samples = {"active", " Sealed\n", "offline", "worker:1:7", "n:18446744073709551615"},
             .check = [](const std::string& input) {
               const Result<NodeState> state = ParseNodeState(input);
               if (state) MC_FUZZ_CHECK(*ParseNodeState(NodeStateName(*state)) == *state);
               if (!state) {
                 const auto wrong =
                     WrongError(state.error(), ErrorCode::kInvalidArgument, "node state");
                 if (!wrong.empty()) return wrong;
               }
               const Result<NodeId> id = node::ParseNodeName(input);
               if (!id) return WrongError(id.error(), ErrorCode::kInvalidArgument, "node name");
               MC_FUZZ_CHECK(node::ParseNodeName(id->ToString()).value_or({}) == *id);
               return kRight;
             }});
}

TEST(MetadataFuzz, ARedisUrlIsReadAndKeepsItsPassword) {
  const std::string password(kPassword);
  RunTarget({.samples = {"redis://user:" + password + "@host:6379/2", "redis://[::1]",
                         "rediss://:" + password + "@h:1/?tls_name=n", "redis://h/0",
                         "redis://u%40:" + password + "%2f@h"},
             .check =
                 [](const std::string& input) {
                   const Result<RedisAddress> address = ParseRedisUrl(input);
                   if (!address) {
                     MC_FUZZ_CHECK(!Leaks(input, address.error().context));
                     return WrongError(address.error(), ErrorCode::kInvalidArgument, "");
                   }
                   MC_FUZZ_CHECK(!Leaks(input, address->ToString()));
                   if (address->tls) return kRight;
                   const Result<RedisAddress> again = ParseRedisUrl(address->ToString());
                   MC_FUZZ_CHECK(again.ok() && again->host == address->host &&
                                 again->port == address->port && again->db == address->db);
                   return kRight;
                 },
             .cost = 20});  // Each URL with TLS reads the authorities of the system.
}

TEST(MetadataFuzz, AnEtcdUrlIsReadAndKeepsItsPassword) {
  const std::string password(kPassword);
  RunTarget({.samples = {"etcd://user:" + password + "@a:1,b:2,[::1]:3/prefix/x", "etcd://h",
                         "etcd://h:1?tls=true&tls_name=n", "etcd://u:" + password + "%41@h/%20"},
             .check =
                 [](const std::string& input) {
                   const Result<EtcdAddress> address = ParseEtcdUrl(input);
                   if (!address) {
                     MC_FUZZ_CHECK(!Leaks(input, address.error().context));
                     return WrongError(address.error(), ErrorCode::kInvalidArgument, "");
                   }
                   MC_FUZZ_CHECK(!address->endpoints.empty() && address->endpoints.size() <= 16);
                   for (const EtcdEndpoint& endpoint : address->endpoints) {
                     const auto again = ParseEtcdUrl(endpoint.ToString());
                     MC_FUZZ_CHECK(again.ok() && again->endpoints.size() == 1 &&
                                   again->endpoints[0].host == endpoint.host &&
                                   again->endpoints[0].port == endpoint.port);
                   }
                   MC_FUZZ_CHECK(!address->prefix.ends_with('/'));
                   return kRight;
                 },
             .cost = 20});  // Each URL with TLS reads the authorities of the system.
}

TEST(MetadataFuzz, TheParametersOfTlsAreReadOrNamed) {
  RunTarget({.samples = {"tls_ca=/a.pem&tls_cert=%2fb&tls_key=c&tls_name=d", "", "tls_ca="},
             .check = [](const std::string& input) {
               const Result<TlsOptions> options = ParseTlsQuery(input);
               if (!options) {
                 return WrongError(options.error(), ErrorCode::kInvalidArgument, "metadata_url");
               }
               MC_FUZZ_CHECK(options->key_file.empty() || !options->cert_file.empty());
               return kRight;
             }});
}

}  // namespace
}  // namespace mooncake::metadata

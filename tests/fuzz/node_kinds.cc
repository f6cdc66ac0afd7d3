#include "fuzz/node_kinds.h"

namespace mooncake::node {
namespace {

template <typename Asked, typename Answered>
RequestKind KindOf(MessageType type, Asked asked = {}) {
  asked.mutable_origin()->set_node("peer:1");
  asked.mutable_origin()->set_sequence(5);
  if constexpr (requires { asked.mutable_keys(); }) AddKey("key", asked.mutable_keys());
  if constexpr (requires { asked.add_value_sizes(1); }) asked.add_value_sizes(100);
  if constexpr (requires { asked.add_limits(1); }) asked.add_limits(100);
  if constexpr (requires { asked.set_owner("a:1"); }) asked.set_owner("a:1");
  if constexpr (requires { asked.add_slots(7); }) asked.add_slots(7);
  return {type, std::make_shared<Asked>(asked), std::make_shared<Answered>()};
}

}  // namespace

std::vector<RequestKind> RequestKinds() {
  v1::Route route;
  route.set_key("key");
  route.set_version(3);
  route.set_size(10);
  route.add_replicas()->set_owner("a:1");
  route.mutable_replicas(0)->set_offset(64);
  route.mutable_replicas(0)->set_generation(1);
  v1::ReadRequest read;
  *read.add_extents() = route.replicas(0);
  read.add_key_hashes(1);
  read.add_offsets(0);
  read.add_sizes(10);
  v1::PublishRequest publish;
  *publish.add_routes() = route;
  v1::NoticeRequest notice;
  *notice.add_committed() = route.replicas(0);
  notice.add_versions(3);
  v1::CheckRequest check;
  check.add_scopes()->set_tenant("t");
  *check.add_extents() = route;
  v1::MirrorRequest mirror;
  mirror.add_scopes()->set_tenant("t");
  *mirror.add_routes() = route;
  v1::MigrateRequest migrate;
  migrate.set_key("key");
  migrate.set_source_segment("here");
  migrate.add_target_segments("there");
  v1::QuotaSurveyRequest survey;
  survey.set_tenant("t");
  survey.add_evict()->set_hash(1);
  using Type = MessageType;
  return {KindOf<v1::PingRequest, v1::PingReply>(Type::kPing),
          KindOf<v1::PutRequest, v1::PutReply>(Type::kPut),
          KindOf<v1::GetRequest, v1::GetReply>(Type::kGet),
          KindOf<v1::ExistRequest, v1::ExistReply>(Type::kExist),
          KindOf<v1::RouteRequest, v1::RouteReply>(Type::kRoute),
          KindOf<v1::ReadRequest, v1::ReadReply>(Type::kRead, read),
          KindOf<v1::WriteRequest, v1::WriteReply>(Type::kWrite),
          KindOf<v1::PublishRequest, v1::PublishReply>(Type::kPublish, publish),
          KindOf<v1::RemoveRequest, v1::RemoveReply>(Type::kRemove),
          KindOf<v1::RemoveAllRequest, v1::RemoveAllReply>(Type::kRemoveAll),
          KindOf<v1::NoticeRequest, v1::NoticeReply>(Type::kNotice, notice),
          KindOf<v1::CheckRequest, v1::CheckReply>(Type::kCheck, check),
          KindOf<v1::PullRequest, v1::PullReply>(Type::kPull),
          KindOf<v1::InventoryRequest, v1::InventoryReply>(Type::kInventory),
          KindOf<v1::MirrorRequest, v1::MirrorReply>(Type::kMirror, mirror),
          KindOf<v1::MigrateRequest, v1::MigrateReply>(Type::kMigrate, migrate),
          KindOf<v1::QuotaChargeRequest, v1::QuotaChargeReply>(Type::kQuotaCharge),
          KindOf<v1::QuotaGrantRequest, v1::QuotaGrantReply>(Type::kQuotaGrant),
          KindOf<v1::QuotaSurveyRequest, v1::QuotaSurveyReply>(Type::kQuotaSurvey, survey)};
}

}  // namespace mooncake::node

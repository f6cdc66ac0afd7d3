#include "metadata/tenant_policy.h"

#include <gtest/gtest.h>

namespace mooncake::metadata {
namespace {

Result<KnownPolicy> Read(const std::string& text) { return TenantPolicyFromJson({9, text}); }

TEST(TenantPolicyJson, RoundTripsEveryField) {
  KnownPolicy policy;
  policy.record.policy = {.max_bytes = UINT64_MAX, .max_objects = 0};
  policy.record.updated_at_ms = 17;
  policy.record.updated_by = "n:1 \"";
  policy.removed = true;
  const Result<std::string> json = TenantPolicyToJson("t", policy);
  ASSERT_TRUE(json.ok()) << json.error().ToString();
  const Result<KnownPolicy> back = Read(*json);
  ASSERT_TRUE(back.ok()) << back.error().ToString();
  EXPECT_EQ(back->record.policy, policy.record.policy);
  EXPECT_EQ(back->record.version, 9u);
  EXPECT_EQ(back->record.updated_at_ms, 17u);
  EXPECT_EQ(back->record.updated_by, "n:1 \"");
  EXPECT_TRUE(back->removed);
  const Result<KnownPolicy> none = Read(*TenantPolicyToJson("t", {}));
  ASSERT_TRUE(none.ok());
  EXPECT_EQ(none->record.policy, TenantPolicy{});
}

TEST(TenantPolicyJson, IgnoresWhatItDoesNotKnow) {
  const auto policy = Read(R"({"x": [1], "spec": {"y": {}, "quota": {"max_bytes": 5, "z": 1}}})");
  ASSERT_TRUE(policy.ok());
  EXPECT_EQ(policy->record.policy, TenantPolicy{.max_bytes = 5});
  EXPECT_TRUE(Read(R"({"spec": {}})").ok());
  EXPECT_EQ(Read(R"({"spec": {"quota": {"max_bytes": null}}})")->record.policy, TenantPolicy{});
}

TEST(TenantPolicyJson, RefusesWhatIsMalformed) {
  for (const char* wrong :
       {"", "[]", "{", "{}", R"({"spec": 1})", R"({"spec": {"quota": []}})",
        R"({"spec": {"quota": {"max_bytes": -1}}})", R"({"spec": {"quota": {"max_bytes": 1.5}}})",
        R"({"spec": {"quota": {"max_objects": "1"}}})",
        R"({"spec": {"quota": {"evict_within_tenant": 0}}})", R"({"spec": {}, "removed": 1})"}) {
    EXPECT_EQ(Read(wrong).code(), ErrorCode::kMetadata) << wrong;
  }
  EXPECT_EQ(Read(std::string(1 << 20, '[')).code(), ErrorCode::kMetadata);
  EXPECT_EQ(Read(std::string(16'000, '[')).code(), ErrorCode::kMetadata);
}

TEST(TenantPolicyJson, WritesOnlyWhatNodesFollow) {
  KnownPolicy policy;
  policy.record.policy.evict_within_tenant = true;
  EXPECT_EQ(TenantPolicyToJson("t", policy).code(), ErrorCode::kInvalidArgument);
  policy.record.policy.max_objects = 5;
  const auto written = TenantPolicyToJson("t", policy);
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(Read(*written)->record.policy, policy.record.policy);
  EXPECT_EQ(TenantPolicyToJson("\xff", {}).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(TenantPolicyName("").code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(TenantPolicyName(std::string(901, 't')).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(TenantPolicyName("t")->starts_with(MetadataStore::kWatchedPrefix));
}

}  // namespace
}  // namespace mooncake::metadata

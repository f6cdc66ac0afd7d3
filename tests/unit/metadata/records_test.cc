#include "metadata/records.h"

#include <gtest/gtest.h>

namespace mooncake::metadata {
namespace {

LeaseRecord Sample() {
  LeaseRecord record;
  record.id = {"worker:1", 7};
  record.state = NodeState::kSealed;
  record.endpoint = "[::1]:4000";
  record.protocol_major = 2;
  record.protocol_minor = 9;
  record.host = "b0f1";
  record.pid = 99;
  record.instance = UINT32_MAX;
  record.era = 5;
  record.beside = 6;
  record.labels = {{"a", ""}, {"quote \"", "\\ \n \x01"}};
  record.segments = {{"s", UINT64_MAX, 12, NodeState::kOffline}, {"t", 1, 0, NodeState::kActive}};
  record.suspect = true;
  return record;
}

TEST(LeaseJson, RoundTripsEveryField) {
  Result<std::string> json = LeaseToJson(Sample());
  ASSERT_TRUE(json.ok()) << json.error().ToString();
  Result<LeaseRecord> back = LeaseFromJson(*json);
  ASSERT_TRUE(back.ok()) << back.error().ToString();
  EXPECT_EQ(*back, Sample());
}

TEST(LeaseJson, IgnoresUnknownFields) {
  std::string json = *LeaseToJson(Sample());
  json.insert(1, "\"future\":{\"x\":[1,2,{}]},");
  EXPECT_EQ(LeaseFromJson(json).value_or({}), Sample());
}

TEST(LeaseJson, ReadsTheLeaseOfANodeWithoutInstance) {
  std::string json = *LeaseToJson(Sample());
  const std::string field = "\"instance\":4294967295,";
  ASSERT_NE(json.find(field), std::string::npos);
  json.erase(json.find(field), field.size());
  LeaseRecord expected = Sample();
  expected.instance = 0;
  EXPECT_EQ(LeaseFromJson(json).value_or({}), expected);
}

TEST(LeaseJson, ANodeOfAnOlderVersionStandsBesideNobody) {
  std::string json = *LeaseToJson(Sample());
  const std::string field = "\"beside\":6,";
  ASSERT_NE(json.find(field), std::string::npos);
  json.erase(json.find(field), field.size());
  LeaseRecord expected = Sample();
  expected.beside = 0;
  EXPECT_EQ(LeaseFromJson(json).value_or({}), expected);
}

TEST(LeaseJson, RefusesWrongTypesRangesAndWords) {
  const std::string json = *LeaseToJson(Sample());
  const std::pair<const char*, const char*> changes[] = {
      {"\"epoch\":7", "\"epoch\":-7"},
      {"\"epoch\":7", "\"epoch\":7.5"},
      {"\"epoch\":7", "\"epoch\":18446744073709551616"},
      {"\"epoch\":7", "\"epoch\":\"7\""},
      {"\"epoch\":7", "\"other\":7"},
      {"\"instance\":4294967295", "\"instance\":4294967296"},
      {"\"protocol_major\":2", "\"protocol_major\":4294967296"},
      {"\"sealed\"", "\"molten\""},
      {"\"suspect\":true", "\"suspect\":1"},
      {"\"worker:1\"", "\"\""},
      {"\"labels\":{", "\"labels\":[{"},
      {"\"a\":\"\"", "\"a\":null"},
      {"\"name\":\"s\"", "\"name\":3"},
  };
  for (const auto& [from, to] : changes) {
    std::string changed = json;
    ASSERT_NE(changed.find(from), std::string::npos) << from;
    changed.replace(changed.find(from), std::string_view(from).size(), to);
    EXPECT_EQ(LeaseFromJson(changed).code(), ErrorCode::kMetadata) << to;
  }
}

TEST(LeaseJson, RefusesHostileBytes) {
  const std::string json = *LeaseToJson(Sample());
  for (size_t size = 0; size < json.size(); ++size) {
    EXPECT_EQ(LeaseFromJson(json.substr(0, size)).code(), ErrorCode::kMetadata);
  }
  // Every byte changed in turn gives a record or kMetadata, and nothing else.
  for (size_t at = 0; at < json.size(); ++at) {
    for (const char byte : {'\0', '"', '{', ']', '\xff', '9'}) {
      std::string changed = json;
      changed[at] = byte;
      const ErrorCode code = LeaseFromJson(changed).code();
      EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kMetadata);
    }
  }
  EXPECT_EQ(LeaseFromJson(std::string(1'000'000, '[')).code(), ErrorCode::kMetadata);
  EXPECT_EQ(LeaseFromJson(std::string(5'000'000, ' ')).code(), ErrorCode::kMetadata);
  EXPECT_EQ(LeaseFromJson("[]").code(), ErrorCode::kMetadata);
  EXPECT_EQ(LeaseFromJson("null").code(), ErrorCode::kMetadata);
}

TEST(EncodedLease, CoreIsBlindToUsageEpochAndSuspicion) {
  LeaseRecord other = Sample();
  other.id.epoch = 8;
  other.suspect = false;
  other.segments[1].used_bytes = 5;
  EXPECT_EQ(EncodeLease(Sample())->core, EncodeLease(other)->core);
  EXPECT_EQ(EncodeLease(other)->usage, "12,5");
  EXPECT_EQ(DecodeLease(other.id, *EncodeLease(other), false).value_or({}), other);
  other.endpoint = "x:1";
  EXPECT_NE(EncodeLease(Sample())->core, EncodeLease(other)->core);
}

TEST(EncodedLease, BrokenUsageIsNoUsageAndAForeignCoreIsRefused) {
  EncodedLease encoded = *EncodeLease(Sample());
  for (const char* usage : {"", "x", "-1", "99999999999999999999", ",,,"}) {
    encoded.usage = usage;
    Result<LeaseRecord> record = DecodeLease({"worker:1", 7}, encoded, false);
    ASSERT_TRUE(record.ok()) << usage;
    EXPECT_EQ(record->segments[0].used_bytes, 0u) << usage;
  }
  EXPECT_EQ(DecodeLease({"other", 7}, encoded, false).code(), ErrorCode::kMetadata);
}

TEST(RoutePolicyJson, RoundTripsAndRefuses) {
  const RoutePolicy policy{5, "x", 18, "n:1", 123};
  const std::string json = *RoutePolicyToJson(policy);
  Result<RoutePolicy> back = RoutePolicyFromJson(json);
  ASSERT_TRUE(back.ok()) << back.error().ToString();
  EXPECT_EQ(back->route_topk, 5u);
  EXPECT_EQ(back->route_control, "x");
  EXPECT_EQ(back->slot_bits, 18u);
  EXPECT_EQ(back->created_by, "n:1");
  EXPECT_EQ(back->created_at_ms, 123u);
  EXPECT_EQ(RoutePolicyFromJson("{}").code(), ErrorCode::kMetadata);
  EXPECT_EQ(RoutePolicyFromJson("").code(), ErrorCode::kMetadata);
}

// A cluster of a version that knew one number only.
TEST(SlotBits, AreTheDefaultWhereNoneAreWrittenAndRefusedOutOfRange) {
  const std::string old_policy =
      R"({"route_topk":2,"route_control":"embedded_wrh","created_by":"n:1","created_at_ms":1)";
  EXPECT_EQ(RoutePolicyFromJson(old_policy + "}").value_or({.slot_bits = 0}).slot_bits, 16u);
  std::string old_lease = *LeaseToJson(Sample());
  const std::string written = R"("slot_bits":16,)";
  ASSERT_NE(old_lease.find(written), std::string::npos) << old_lease;
  old_lease.erase(old_lease.find(written), written.size());
  EXPECT_EQ(LeaseFromJson(old_lease).value_or({.slot_bits = 0}).slot_bits, 16u);
  for (const char* bits : {"15", "22", "0", "-1", "\"16\"", "4294967312"}) {
    const std::string policy = old_policy + ",\"slot_bits\":" + bits + "}";
    EXPECT_EQ(RoutePolicyFromJson(policy).code(), ErrorCode::kMetadata) << bits;
  }
}

// Such a version compares route_control with what it asks for; it must not join another number.
TEST(SlotBits, OtherThanTheDefaultShowInAFieldThatEarlierVersionsCompare) {
  EXPECT_NE(RoutePolicyToJson({.slot_bits = 16})->find(R"("embedded_wrh")"), std::string::npos);
  EXPECT_EQ(RoutePolicyToJson({.slot_bits = 21})->find(R"("embedded_wrh")"), std::string::npos);
}

TEST(NodeStateText, ParsesEveryWordInAnyCaseAndTrimmed) {
  for (const NodeState state : {NodeState::kStandby, NodeState::kActive, NodeState::kDraining,
                                NodeState::kSealed, NodeState::kOffline}) {
    const std::string name(NodeStateName(state));
    EXPECT_EQ(ParseNodeState(name).value_or(NodeState::kActive), state);
    EXPECT_EQ(ParseNodeState(" \t" + name + "\n").value_or(NodeState::kActive), state);
  }
  EXPECT_EQ(ParseNodeState("DrainING").value_or(NodeState::kActive), NodeState::kDraining);
  for (const char* wrong : {"", " ", "activ", "actives", "act ive"}) {
    EXPECT_EQ(ParseNodeState(wrong).code(), ErrorCode::kInvalidArgument) << wrong;
  }
}

TEST(NodeIdText, SplitsAtTheLastColon) {
  EXPECT_EQ(ParseNodeId("a:b:12").value_or({}), (NodeId{"a:b", 12}));
  for (const char* wrong : {"", ":", "a", "a:", ":1", "a:x", "a:1x", "a:-1"}) {
    EXPECT_EQ(ParseNodeId(wrong).code(), ErrorCode::kMetadata) << wrong;
  }
}

}  // namespace
}  // namespace mooncake::metadata

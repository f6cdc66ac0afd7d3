// What the tests of quotas share: values of one size, and what became of them.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "node/put_op.h"
#include "node/quota.h"
#include "support/test_cluster.h"

namespace mooncake::node {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

inline constexpr uint64_t kSize = 1000;

// The tests' own scope is of this tenant.
inline const std::string kTenant = routing::Scope{}.tenant;

inline void SetQuota(TestNode& node, std::optional<uint64_t> bytes,
                     std::optional<uint64_t> objects = std::nullopt) {
  const auto version = node.node().SetTenantPolicy(
      kTenant, {.max_bytes = bytes, .max_objects = objects}, std::nullopt);
  ASSERT_TRUE(version.ok()) << version.error().ToString();
}

inline std::vector<std::string> Keys(int count, const std::string& prefix = "key-") {
  std::vector<std::string> keys;
  for (int i = 0; i < count; ++i) keys.push_back(prefix + std::to_string(i));
  return keys;
}

// How many of the puts succeeded; the others have to be refused.
inline int Accepted(const std::vector<Status>& statuses) {
  int accepted = 0;
  for (const Status& status : statuses) {
    accepted += status.ok();
    if (status.ok()) continue;
    EXPECT_EQ(status.code(), ErrorCode::kConflict) << status.error().ToString();
    EXPECT_EQ(status.error().reason, ErrorReason::kOverQuota);
  }
  return accepted;
}

inline int PutEach(TestNode& writer, const std::vector<std::string>& keys,
                   const ReplicateConfig* policy = nullptr) {
  std::vector<Status> statuses;
  for (const std::string& key : keys) {
    statuses.push_back(writer.Put(key, ValueOf(key, kSize), policy));
  }
  return Accepted(statuses);
}

// What all the nodes together count.
inline TenantAccount::Amounts Total(std::initializer_list<TestNode*> nodes) {
  TenantAccount::Amounts total;
  for (TestNode* node : nodes) {
    TenantAccount* account = node->core().meter.FindTenant(kTenant);
    if (account == nullptr) continue;
    const auto amounts = account->amounts();
    total.used = total.used.Plus(amounts.used);
    total.pending = total.pending.Plus(amounts.pending);
    total.granted = total.granted.Plus(amounts.granted);
  }
  return total;
}

inline uint64_t Stored(TestNode& reader, const std::vector<std::string>& keys) {
  uint64_t stored = 0;
  for (const auto& found : reader.ExistAll(keys)) stored += *found == Existence::kPresent;
  return stored;
}

inline std::vector<Status> PutAs(TestNode& node, const std::string& tenant,
                                 const std::vector<std::string>& keys) {
  const auto scope = node.core().scopes.Intern({.tenant = tenant});
  std::vector<Status> statuses;
  for (const std::string& key : keys) {
    const std::string value = ValueOf(key, kSize);
    const ConstBytes bytes = BytesOf(value);
    const WriteItem item{MakeKeyRef(*scope, key), {&bytes, 1}, bytes.size()};
    statuses.push_back(
        std::move(WriteValues(node.core(), {&item, 1}, {nullptr, false, node.Deadline()})[0]));
  }
  return statuses;
}

}  // namespace mooncake::node

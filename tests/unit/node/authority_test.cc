#include "node/authority.h"

#include <gtest/gtest.h>

#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;

TEST(Authority, OfAPublicationThatComesTwiceNothingIsRefusedWhilePartOfItIsInUse) {
  Simulated(1, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    Core& core = a.core();
    const Place first{core.names.IndexOf("b:1").value_or(kSelf), 0, 64, 1};
    const Place second{core.names.IndexOf("c:1").value_or(kSelf), 0, 128, 1};
    const Place other{core.names.IndexOf("d:1").value_or(kSelf), 0, 0, 1};
    Version version = 0;
    bool in_use = false;
    const auto publish = [&](std::vector<Place> places) {
      Publication publication;
      publication.remote = std::move(places);
      publication.size = 10;
      publication.if_absent = true;
      Charge charge;
      return PublishRoute(core, a.Ref("k"), std::move(publication), &version, &charge, &in_use);
    };
    // As a new authority has it from the one owner that it heard.
    ASSERT_EQ(publish({first}), kItemOk);
    EXPECT_TRUE(in_use);
    // Its writer, who had no answer before.
    ASSERT_EQ(publish({first, second}), kItemOk);
    EXPECT_TRUE(in_use);
    ASSERT_EQ(publish({first}), kItemOk);
    EXPECT_TRUE(in_use);
    // Somebody else's.
    ASSERT_EQ(publish({other}), kItemOk);
    EXPECT_FALSE(in_use);
  });
}

}  // namespace
}  // namespace mooncake::node

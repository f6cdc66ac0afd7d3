// What becomes of leases when the metadata service loses them: who may repair which, and who may
// end them.
#include <gtest/gtest.h>

#include "world.h"

namespace mooncake::node {
namespace {

using testing::FaultyMetadata;
using testing::MetadataFault;

std::vector<LeaseRecord> Leases(World& world) {
  return world.service.ReadChanges(0).value_or({}).leases;
}

TEST(LeaseRepair, WhoLostItsNameDoesNotEndTheLeaseOfWhoHasItNow) {
  InWorld(1, [](World& world) {
    FaultyMetadata own(world.service, world.runtime);
    auto first = world.Started("a", own);
    own.SetFault(MetadataFault::kDown);
    world.state->Forget();
    auto second = world.Started("a");
    ASSERT_EQ(second->self(), first->self());
    own.SetFault(MetadataFault::kNone);
    EXPECT_EQ(first->HeartbeatNow().code(), ErrorCode::kStaleEpoch);
    EXPECT_TRUE(first->superseded());
    EXPECT_TRUE(first->Leave().ok());
    ASSERT_EQ(Leases(world).size(), 1u);
    EXPECT_EQ(Leases(world)[0].instance, second->instance());
    EXPECT_TRUE(second->HeartbeatNow().ok());
    EXPECT_TRUE(second->Leave().ok());
    EXPECT_TRUE(Leases(world).empty());
  });
}

}  // namespace
}  // namespace mooncake::node

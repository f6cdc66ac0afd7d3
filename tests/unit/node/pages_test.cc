// The replies that hand over many routes: pages that a transport takes, and nothing lost between.
#include <gtest/gtest.h>

#include <set>

#include "node/control_calls.h"
#include "node/wire.h"
#include "support/test_cluster.h"
#include "unit/node/extents.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

constexpr size_t kKeyBytes = 60'000;
constexpr int kKeys = 700;  // More than one message takes.
static_assert(kKeys * kKeyBytes > kMessageSizeMax);

std::string LongKey(int i) { return std::string(kKeyBytes - 4, 'k') + std::to_string(1'000 + i); }

// Follows the cursor to the end; returns how often each key came, and how many pages there were.
template <typename Request, typename ReplyMessage>
std::map<std::string, int> AllPages(TestNode& node, const std::vector<uint32_t>& slots,
                                    void (*serve)(Core&, const Request&, ReplyMessage*, bool*),
                                    int* pages) {
  std::map<std::string, int> seen;
  Request request;
  request.mutable_origin()->set_node("new:1");
  request.mutable_origin()->set_revision(~uint64_t{0});
  request.mutable_slots()->Add(slots.begin(), slots.end());
  for (*pages = 1; *pages < 1'000; ++*pages) {
    ReplyMessage reply;
    bool valid = true;
    serve(node.core(), request, &reply, &valid);
    EXPECT_TRUE(valid);
    EXPECT_LE(reply.ByteSizeLong(), kMessageSizeMax);
    for (const v1::Route& route : reply.routes()) ++seen[route.key()];
    if (reply.next_cursor() == 0) return seen;
    EXPECT_GT(reply.next_cursor(), request.cursor());
    request.set_cursor(reply.next_cursor());
  }
  return seen;
}

void ExpectEachOnce(const std::map<std::string, int>& seen) {
  EXPECT_EQ(seen.size(), static_cast<size_t>(kKeys));
  for (const auto& [key, count] : seen) EXPECT_EQ(count, 1) << key.substr(kKeyBytes - 4);
}

// All of one slot, so that no page can end between two of them.
TEST(Pages, ARouteOfALongKeyIsHandedOverOnceInMessagesThatATransportTakes) {
  Simulated(1, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    const NameIndex owner = *node.core().names.IndexOf("b:1");
    const auto scope = node.core().scopes.Intern({});
    for (uint64_t i = 0; i < kKeys; ++i) {
      const std::string key = LongKey(static_cast<int>(i));
      // The shard's routes differ in the upper and in the lower bits of their hashes.
      const KeyRef ref{(i % 3) << 56 | i, scope->index, key};
      Publication publication;
      publication.size = 1;
      publication.remote = {{owner, 0, i * 64, i + 1}};
      Version version = 0;
      Superseded superseded;
      ASSERT_EQ(node.core().routes.Publish(ref, publication, &version, &superseded), kItemOk);
    }
    int pages = 0;
    const std::vector<uint32_t> slots = {0, 1 << 8, 2 << 8};
    ExpectEachOnce(AllPages<v1::PullRequest>(node, slots, ServePull, &pages));
    EXPECT_GT(pages, 1);
    EXPECT_LE(pages, 5);
  });
}

TEST(Pages, AnExtentOfALongKeyIsToldOnceInMessagesThatATransportTakes) {
  Simulated(2, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    std::vector<uint32_t> slots;
    for (uint32_t slot = 0; slot < node.core().routes.slots().count(); ++slot)
      slots.push_back(slot);
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = LongKey(i);
      ASSERT_TRUE(Live(node.core().extents, key, 1));
    }
    int pages = 0;
    ExpectEachOnce(AllPages<v1::InventoryRequest>(node, slots, ServeInventory, &pages));
    EXPECT_GT(pages, 1);
    EXPECT_LE(pages, 5);
  });
}

}  // namespace
}  // namespace mooncake::node

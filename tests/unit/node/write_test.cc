#include <gtest/gtest.h>

#include "node/put_op.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

// What a dummy's call gave up on: its bytes may have changed since.
TEST(Write, ThatIsNotWantedAnyMoreLeavesTheOldValue) {
  Simulated(20, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    TestNode& client = cluster.Start("client", 0);
    for (const char* authority : {"a:1", "b:1"}) {  // Elsewhere, and here.
      for (int asked_before = 0; asked_before < 2; ++asked_before) {
        const std::string key = TestCluster::KeyAt(client, authority, asked_before);
        ASSERT_TRUE(b.Put(key, "old").ok());
        const ConstBytes bytes = BytesOf(std::string_view("new"));
        const WriteItem item{b.Ref(key), {&bytes, 1}, bytes.size()};
        int asked = 0;
        const auto wanted = [&] { return asked++ < asked_before; };
        const auto put = WriteValues(b.core(), {&item, 1}, {nullptr, false, b.Deadline(), wanted});
        const bool in_time = std::string_view(authority) == "b:1" && asked_before == 1;
        EXPECT_EQ(put[0].code(), in_time ? ErrorCode::kOk : ErrorCode::kTransport);
        EXPECT_EQ(client.Get(key).value_or("nothing"), in_time ? "new" : "old");
      }
    }
    cluster.Settle();
    EXPECT_LE(a.UsedBytes() + b.UsedBytes(), 4 * 64u);
  });
}

}  // namespace
}  // namespace mooncake::node

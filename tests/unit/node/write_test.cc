#include <gtest/gtest.h>

#include <array>

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

// In one batch: the last value of a key is what counts, or with if_absent the first, whichever way
// each of them takes. Here the large ones have no room on their authority.
TEST(Write, ValuesOfOneKeyInABatchDoNotOvertakeEachOther) {
  for (const bool if_absent : {false, true}) {
    Simulated(21, [&](TestCluster& cluster) {
      TestNode& small = cluster.Start("small", testing::kMiB);
      cluster.Start("large", 8 * testing::kMiB);
      for (TestNode* writer : {&small, &cluster.Start("writer", 0)}) {
        for (const bool large_first : {false, true}) {
          const int index = (writer == &small ? 0 : 2) + (large_first ? 1 : 0);
          const std::string key = TestCluster::KeyAt(small, "small:1", index);
          const std::string large(2 * testing::kMiB, 'l');
          const std::string first = large_first ? large : "first";
          const std::string last = large_first ? "last" : large;
          const std::array<ConstBytes, 3> bytes = {BytesOf(first), BytesOf(std::string_view("m")),
                                                   BytesOf(last)};
          std::vector<WriteItem> items;
          for (const ConstBytes& each : bytes) {
            items.push_back({writer->Ref(key), {&each, 1}, each.size()});
          }
          for (const Status& status :
               WriteValues(writer->core(), items, {nullptr, if_absent, writer->Deadline(), {}})) {
            EXPECT_TRUE(status.ok());
          }
          EXPECT_EQ(writer->Get(key).value_or("nothing") == (if_absent ? first : last), true)
              << writer->name() << (if_absent ? " if absent" : "") << (large_first ? " 1" : " 3");
        }
      }
    });
  }
}

}  // namespace
}  // namespace mooncake::node

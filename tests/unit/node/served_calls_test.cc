// The served side of writes, as a transport drives it: step by step, broken off anywhere.
#include <gtest/gtest.h>

#include <cstring>

#include "base/checksum.h"
#include "node/data_calls.h"
#include "node/node_service.h"
#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

// One put or write request on its way through a node.
template <typename Message>
class Ingest {
 public:
  Ingest(TestNode& node, const std::vector<std::string>& keys, std::string value,
         uint64_t sequence = 0)
      : node_(node), value_(std::move(value)), keys_(keys.size()) {
    message.mutable_origin()->set_node("peer:1");
    message.mutable_origin()->set_sequence(sequence);
    WriteScope({}, message.mutable_scope());
    for (const std::string& key : keys) {
      AddKey(key, message.mutable_keys());
      message.add_value_sizes(value_.size());
    }
  }

  bool Accept() {
    text_ = message.SerializeAsString();
    const IncomingRequest request{0, text_, keys_ * (value_.size() + kChecksumBytes),
                                  node_.Deadline(limit_ms)};
    if constexpr (std::is_same_v<Message, v1::PutRequest>) {
      call_ = AcceptPut(node_.core(), request);
    } else {
      call_ = AcceptWrite(node_.core(), request);
    }
    return call_ != nullptr;
  }
  bool Prepare(bool may_block = false) { return call_->Prepare(may_block); }
  void FillPayload() {
    const auto targets = call_->PayloadTargets();
    for (size_t i = 0; i < keys_; ++i) {
      EXPECT_EQ(targets[i].size(), value_.size());
      if (targets[i].data() != nullptr) {
        std::memcpy(targets[i].data(), value_.data(), value_.size());
      }
      StoreChecksum(base::Checksum(BytesOf(value_)), &targets[keys_][i * kChecksumBytes]);
    }
  }
  template <typename ReplyMessage>
  ReplyMessage Run() {
    Reply reply;
    EXPECT_TRUE(call_->Run(false, reply));
    ReplyMessage message;
    EXPECT_TRUE(message.ParseFromString(reply.message));
    return message;
  }
  template <typename ReplyMessage>
  ReplyMessage Serve() {
    EXPECT_TRUE(Accept());
    if (!Prepare()) {
      EXPECT_TRUE(Prepare(true));
    }
    FillPayload();
    return Run<ReplyMessage>();
  }
  void Drop() { call_.reset(); }

  Message message;
  uint64_t limit_ms = 20'000;  // Of its caller's patience.

 private:
  TestNode& node_;
  const std::string value_;
  const size_t keys_;
  std::string text_;
  std::unique_ptr<ServerCall> call_;
};

using Put = Ingest<v1::PutRequest>;
using Write = Ingest<v1::WriteRequest>;

TEST(PutCall, PublishesEveryItemWithItsChecksum) {
  Simulated(1, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    const auto reply = Put(node, {"x", "y"}, "value").Serve<v1::PutReply>();
    ASSERT_EQ(reply.codes_size(), 2);
    EXPECT_EQ(reply.codes(0), kItemOk);
    EXPECT_EQ(reply.codes(1), kItemOk);
    EXPECT_EQ(node.Get("x").value_or(""), "value");
    EXPECT_EQ(node.Get("y").value_or(""), "value");
    EXPECT_EQ(node.Find("x")->checksum, base::Checksum(BytesOf("value")));
  });
}

TEST(PutCall, BrokenOffAnywhereItGivesTheSpaceBackAndShowsNothing) {
  Simulated(2, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    for (int steps = 0; steps < 3; ++steps) {
      Put put(node, {"x", "y"}, std::string(1000, 'v'), 7);
      ASSERT_TRUE(put.Accept());
      if (steps > 0) {
        EXPECT_TRUE(put.Prepare());
      }
      if (steps > 0) {
        EXPECT_EQ(node.UsedBytes(), 2u * 1024);
      }
      if (steps > 1) put.FillPayload();
      put.Drop();
      EXPECT_EQ(node.UsedBytes(), 0u);
      EXPECT_EQ(node.Get("x").code(), ErrorCode::kNotFound);
    }
    // The sequence was given back too: the retry is served.
    EXPECT_EQ(Put(node, {"x"}, "v", 7).Serve<v1::PutReply>().codes(0), kItemOk);
    EXPECT_EQ(node.Get("x").value_or(""), "v");
  });
}

TEST(PutCall, ADuplicateReturnsTheFirstOutcomeAndChangesNothing) {
  Simulated(3, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    EXPECT_EQ(Put(node, {"x"}, "first", 9).Serve<v1::PutReply>().codes(0), kItemOk);
    ASSERT_TRUE(node.Remove("x").ok());
    EXPECT_EQ(Put(node, {"x"}, "first", 9).Serve<v1::PutReply>().codes(0), kItemOk);
    EXPECT_EQ(node.Get("x").code(), ErrorCode::kNotFound);
    EXPECT_EQ(node.UsedBytes(), 0u);
  });
}

TEST(PutCall, ADuplicateOfARunningRequestIsToldToRetry) {
  Simulated(4, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Put first(node, {"x"}, "v", 9);
    ASSERT_TRUE(first.Accept());
    ASSERT_TRUE(first.Prepare());
    EXPECT_EQ(Put(node, {"x"}, "v", 9).Serve<v1::PutReply>().codes_size(), 0);
    first.FillPayload();
    EXPECT_EQ(first.Run<v1::PutReply>().codes(0), kItemOk);
    EXPECT_EQ(node.Get("x").value_or(""), "v");
  });
}

TEST(PutCall, ThatIsServedAfterItsCallerGaveUpChangesNothing) {
  Simulated(12, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Put late(node, {"x"}, "old", 9);
    late.limit_ms = 1'000;
    ASSERT_TRUE(late.Accept());
    ASSERT_TRUE(late.Prepare());
    late.FillPayload();
    cluster.runtime().SleepMs(1'000);
    ASSERT_TRUE(node.Put("x", "new").ok());
    EXPECT_EQ(late.Run<v1::PutReply>().codes(0), kItemRetryLater);
    late.Drop();
    EXPECT_EQ(node.Get("x").value_or(""), "new");
    EXPECT_EQ(node.UsedBytes(), 64u);
  });
}

TEST(RemoveCall, ThatIsServedAfterItsCallerGaveUpChangesNothing) {
  Simulated(13, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    ASSERT_TRUE(node.Put("x", "v").ok());
    v1::RemoveRequest message;
    message.mutable_origin()->set_node("peer:1");
    message.mutable_origin()->set_sequence(9);
    WriteScope({}, message.mutable_scope());
    AddKey("x", message.mutable_keys());
    const std::string text = message.SerializeAsString();
    NodeService service;
    service.Open(node.core());
    const auto type = static_cast<uint16_t>(MessageType::kRemove);
    auto late = service.Accept({type, text, 0, node.Deadline(1'000)});
    ASSERT_NE(late, nullptr);
    ASSERT_TRUE(late->Prepare(false));
    cluster.runtime().SleepMs(1'000);
    Reply reply;
    ASSERT_TRUE(late->Run(false, reply));
    EXPECT_EQ(node.Get("x").value_or(""), "v");
  });
}

TEST(PutCall, AnswersPerItemWhereItIsNotTheAuthority) {
  Simulated(5, [](TestCluster& cluster) {
    auto& a = cluster.Start("a");
    cluster.Start("b");
    const std::string own = TestCluster::KeyAt(a, "a:1");
    const std::string other = TestCluster::KeyAt(a, "b:1");
    const auto reply = Put(a, {other, own}, "v").Serve<v1::PutReply>();
    EXPECT_EQ(reply.codes(0), kItemWrongAuthority);
    EXPECT_EQ(reply.codes(1), kItemOk);
    EXPECT_EQ(reply.revision(), a.core().view()->revision());
    EXPECT_EQ(a.UsedBytes(), 64u);
  });
}

TEST(PutCall, ASlotThatMovesAwayWhileTheBytesComePublishesNothing) {
  Simulated(6, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Put put(node, {"x"}, "v");
    ASSERT_TRUE(put.Accept());
    ASSERT_TRUE(put.Prepare());
    put.FillPayload();
    const routing::Slot slots[] = {node.core().routes.SlotOf(node.Ref("x"))};
    node.core().routes.Fence(slots);
    EXPECT_EQ(put.Run<v1::PutReply>().codes(0), kItemWrongAuthority);
    put.Drop();
    EXPECT_EQ(node.UsedBytes(), 0u);
  });
}

TEST(PutCall, AValueThatNoSegmentHoldsEvictsNothing) {
  Simulated(7, [](TestCluster& cluster) {
    auto& node = cluster.Start("a", 64 * testing::kKiB);
    ASSERT_TRUE(node.Put("kept", "v").ok());
    const auto reply = Put(node, {"x"}, std::string(100'000, 'v')).Serve<v1::PutReply>();
    EXPECT_EQ(reply.codes(0), CodeOf(ErrorCode::kNoSpace));
    EXPECT_EQ(node.Get("kept").value_or(""), "v");
  });
}

TEST(PutCall, MakesRoomByEvictionAndReportsNoSpaceWhenNothingCanGo) {
  Simulated(8, [](TestCluster& cluster) {
    auto& node = cluster.Start("a", 64 * testing::kKiB);
    for (int i = 0; i < 10; ++i) {
      const auto reply =
          Put(node, {"k" + std::to_string(i)}, std::string(20'000, 'v')).Serve<v1::PutReply>();
      EXPECT_EQ(reply.codes(0), kItemOk) << i;
    }
    // Reservations cannot be evicted: three of them leave no room for a fourth.
    std::vector<std::unique_ptr<Put>> held;
    for (int i = 0; i < 3; ++i) {
      held.push_back(std::make_unique<Put>(node, std::vector<std::string>{"h" + std::to_string(i)},
                                           std::string(20'000, 'v')));
      ASSERT_TRUE(held.back()->Accept());
      ASSERT_TRUE(held.back()->Prepare(true));
    }
    const auto reply = Put(node, {"x"}, std::string(20'000, 'v')).Serve<v1::PutReply>();
    EXPECT_EQ(reply.codes(0), CodeOf(ErrorCode::kNoSpace));
  });
}

TEST(PutCall, IfAbsentNeitherReservesNorReplaces) {
  Simulated(9, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    ASSERT_TRUE(node.Put("x", "old").ok());
    Put put(node, {"x"}, "new");
    put.message.set_if_absent(true);
    EXPECT_EQ(put.Serve<v1::PutReply>().codes(0), kItemOk);
    EXPECT_EQ(node.Get("x").value_or(""), "old");
    EXPECT_EQ(node.UsedBytes(), 64u);
  });
}

TEST(PutCall, OfTwoThatRaceIfAbsentOneValueIsKeptAndTheOtherGivenBack) {
  Simulated(10, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Put first(node, {"x"}, "first");
    Put second(node, {"x"}, "second");
    for (Put* put : {&first, &second}) {
      put->message.set_if_absent(true);
      ASSERT_TRUE(put->Accept());
      ASSERT_TRUE(put->Prepare());
      put->FillPayload();
    }
    EXPECT_EQ(second.Run<v1::PutReply>().codes(0), kItemOk);
    EXPECT_EQ(first.Run<v1::PutReply>().codes(0), kItemOk);
    first.Drop();
    second.Drop();
    EXPECT_EQ(node.Get("x").value_or(""), "second");
    EXPECT_EQ(node.UsedBytes(), 64u);
  });
}

TEST(WriteCall, ReservesForAPublishAndOnlyForThisIncarnation) {
  Simulated(11, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Write stale(node, {"x"}, "v");
    stale.message.set_owner("a:0");
    EXPECT_EQ(stale.Serve<v1::WriteReply>().codes(0), CodeOf(ErrorCode::kStaleEpoch));
    stale.Drop();
    EXPECT_EQ(node.UsedBytes(), 0u);
    Write write(node, {"x"}, "v");
    write.message.set_owner(node.name());
    const auto reply = write.Serve<v1::WriteReply>();
    write.Drop();
    ASSERT_EQ(reply.extents_size(), 1);
    EXPECT_EQ(node.UsedBytes(), 64u);
    EXPECT_EQ(node.Get("x").code(), ErrorCode::kNotFound);
    const v1::Replica& place = reply.extents(0);
    const ExtentPin extent =
        node.core().extents.Find(place.segment(), place.offset(), place.generation());
    ASSERT_TRUE(extent);
    EXPECT_EQ(extent->state(), ExtentState::kReserved);
  });
}

TEST(WriteCall, TakesOnlyTheNamedSegment) {
  Simulated(12, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    Write write(node, {"x"}, "v");
    write.message.set_owner(node.name());
    write.message.set_segment("other-segment");
    EXPECT_EQ(write.Serve<v1::WriteReply>().codes(0), CodeOf(ErrorCode::kNoSpace));
  });
}

}  // namespace
}  // namespace mooncake::node

// Whatever bytes a peer sends, the node neither crashes nor keeps what it held for them.
#include <gtest/gtest.h>

#include <random>

#include "node/data_calls.h"
#include "node/node_service.h"
#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

// Serves one request as a transport would. False: it was not accepted.
bool Serve(NodeService& service, uint16_t type, const std::string& message, uint64_t payload_size,
           uint64_t deadline_ms) {
  auto call = service.Accept({type, message, payload_size, deadline_ms});
  if (!call) return false;
  if (!call->Prepare(false)) {
    EXPECT_TRUE(call->Prepare(true));
  }
  uint64_t size = 0;
  for (MutableBytes target : call->PayloadTargets()) size += target.size();
  EXPECT_EQ(size, payload_size);
  Reply reply;
  if (!call->Run(false, reply)) {
    EXPECT_TRUE(call->Run(true, reply));
  }
  return true;
}

template <typename Message>
Message From(Message message) {
  message.mutable_origin()->set_node("peer:1");
  message.mutable_origin()->set_sequence(5);
  return message;
}

template <typename Message>
Message WithKey(Message message) {
  AddKey("key", message.mutable_keys());
  return From(std::move(message));
}

using Sampled = std::pair<std::string, uint64_t>;  // A message, and the payload it announces.

// A well-formed request of the types that name keys.
std::optional<Sampled> SampleWithKey(TestNode& node, MessageType type) {
  constexpr uint64_t kPayload = 100 + kChecksumBytes;
  auto put = WithKey(v1::PutRequest());
  put.add_value_sizes(100);
  auto write = WithKey(v1::WriteRequest());
  write.set_owner(node.name());
  write.add_value_sizes(100);
  auto get = WithKey(v1::GetRequest());
  get.add_limits(100);
  get.add_offsets(0);
  switch (type) {
    case MessageType::kExist: return Sampled{WithKey(v1::ExistRequest()).SerializeAsString(), 0};
    case MessageType::kRoute: return Sampled{WithKey(v1::RouteRequest()).SerializeAsString(), 0};
    case MessageType::kRemove: return Sampled{WithKey(v1::RemoveRequest()).SerializeAsString(), 0};
    case MessageType::kPut: return Sampled{put.SerializeAsString(), kPayload};
    case MessageType::kWrite: return Sampled{write.SerializeAsString(), kPayload};
    case MessageType::kGet: return Sampled{get.SerializeAsString(), 0};
    default: return std::nullopt;
  }
}

// The same for those that name routes.
std::optional<Sampled> SampleWithRoute(TestNode& node, MessageType type) {
  v1::Route route;
  WriteRoute("key", {3, 10, 4, true, false, {Place{kSelf, 0, 64, 1}}}, node.core().names, &route);
  auto read = From(v1::ReadRequest());
  read.set_owner(node.name());
  *read.add_extents() = route.replicas(0);
  read.add_key_hashes(1);
  read.add_offsets(0);
  read.add_sizes(10);
  auto publish = From(v1::PublishRequest());
  *publish.add_routes() = route;
  auto notice = From(v1::NoticeRequest());
  notice.set_owner(node.name());
  *notice.add_committed() = route.replicas(0);
  notice.add_versions(3);
  auto check = From(v1::CheckRequest());
  check.add_scopes()->set_tenant("t");
  *check.add_extents() = route;
  auto mirror = From(v1::MirrorRequest());
  mirror.add_scopes()->set_tenant("t");
  *mirror.add_routes() = route;
  switch (type) {
    case MessageType::kRead: return Sampled{read.SerializeAsString(), 0};
    case MessageType::kPublish: return Sampled{publish.SerializeAsString(), 0};
    case MessageType::kNotice: return Sampled{notice.SerializeAsString(), 0};
    case MessageType::kCheck: return Sampled{check.SerializeAsString(), 0};
    case MessageType::kMirror: return Sampled{mirror.SerializeAsString(), 0};
    default: return std::nullopt;
  }
}

Sampled Sample(TestNode& node, MessageType type) {
  if (auto sampled = SampleWithKey(node, type)) return *std::move(sampled);
  if (auto sampled = SampleWithRoute(node, type)) return *std::move(sampled);
  auto pull = From(v1::PullRequest());
  pull.add_slots(7);
  auto inventory = From(v1::InventoryRequest());
  inventory.add_slots(7);
  auto migrate = From(v1::MigrateRequest());
  migrate.set_key("key");
  migrate.set_source_segment("here");
  migrate.add_target_segments("there");
  switch (type) {
    case MessageType::kPull: return {pull.SerializeAsString(), 0};
    case MessageType::kInventory: return {inventory.SerializeAsString(), 0};
    case MessageType::kMigrate: return {migrate.SerializeAsString(), 0};
    case MessageType::kRemoveAll: return {From(v1::RemoveAllRequest()).SerializeAsString(), 0};
    default: return {From(v1::PingRequest()).SerializeAsString(), 0};
  }
}

void Mutate(std::mt19937_64& random, std::string* bytes) {
  for (uint64_t change = 0; change < 1 + random() % 3; ++change) {
    const size_t at = bytes->empty() ? 0 : random() % bytes->size();
    switch (random() % 3) {
      case 0:
        bytes->insert(bytes->begin() + static_cast<long>(at), static_cast<char>(random()));
        break;
      case 1:
        if (!bytes->empty()) (*bytes)[at] = static_cast<char>(random());
        break;
      default:
        if (!bytes->empty()) bytes->erase(at, 1 + random() % 4);
        break;
    }
  }
}

TEST(HostileCalls, EverySampleIsAcceptedAsItIs) {
  Simulated(1, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    EXPECT_FALSE(Serve(service, 1, "", 0, 0));  // Not open yet.
    service.Open(node.core());
    for (uint16_t type = 1; type <= static_cast<uint16_t>(MessageType::kMigrate); ++type) {
      const auto [message, payload] = Sample(node, static_cast<MessageType>(type));
      EXPECT_TRUE(Serve(service, type, message, payload, node.Deadline())) << type;
    }
    EXPECT_FALSE(Serve(service, 0, "", 0, 0));
    EXPECT_FALSE(Serve(service, 999, "", 0, 0));
  });
}

TEST(HostileCalls, WhatIsMeantForAnotherProcessIsRefused) {
  Simulated(5, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    const uint32_t own = node.core().membership.instance();
    ASSERT_NE(own, 0u);
    for (uint16_t type = 1; type <= static_cast<uint16_t>(MessageType::kMirror); ++type) {
      const auto [message, payload] = Sample(node, static_cast<MessageType>(type));
      v1::PingRequest addressed;  // The origin has the same number in all requests.
      addressed.mutable_origin()->set_addressee(own);
      EXPECT_TRUE(
          Serve(service, type, message + addressed.SerializeAsString(), payload, node.Deadline()))
          << type;
      addressed.mutable_origin()->set_addressee(own + 1);
      EXPECT_FALSE(
          Serve(service, type, message + addressed.SerializeAsString(), payload, node.Deadline()))
          << type;
    }
  });
}

TEST(HostileCalls, AKeyThatNoOtherMessageCanNameIsNotPublished) {
  Simulated(6, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    v1::PublishRequest publish;
    ASSERT_TRUE(publish.ParseFromString(Sample(node, MessageType::kPublish).first));
    publish.mutable_routes(0)->set_key(std::string(kKeySizeMax + 1, 'k'));
    auto call = service.Accept({static_cast<uint16_t>(MessageType::kPublish),
                                publish.SerializeAsString(), 0, node.Deadline()});
    ASSERT_TRUE(call && call->Prepare(true));
    Reply reply;
    ASSERT_TRUE(call->Run(true, reply));
    EXPECT_TRUE(reply.message.empty());  // Refused as a whole.
  });
}

TEST(HostileCalls, AnnouncedPayloadsMustMatchTheMessage) {
  Simulated(2, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    for (uint16_t type = 1; type <= static_cast<uint16_t>(MessageType::kMigrate); ++type) {
      const auto [message, payload] = Sample(node, static_cast<MessageType>(type));
      EXPECT_FALSE(Serve(service, type, message, payload + 1, node.Deadline())) << type;
      if (payload > 0) {
        EXPECT_FALSE(Serve(service, type, message, payload - 1, node.Deadline()));
        EXPECT_FALSE(Serve(service, type, message, 0, node.Deadline()));
        EXPECT_FALSE(Serve(service, type, message, ~uint64_t{0}, node.Deadline()));
      }
    }
    EXPECT_EQ(node.UsedBytes(), 0u);
  });
}

TEST(HostileCalls, FieldsOfANewerMinorVersionAreIgnored) {
  Simulated(4, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    // Field 1000: as a number, as text.
    const std::string unknown("\xc0\x3e\x07\xc2\x3e\x02hi", 8);
    for (uint16_t type = 1; type <= static_cast<uint16_t>(MessageType::kMigrate); ++type) {
      const auto [message, payload] = Sample(node, static_cast<MessageType>(type));
      EXPECT_TRUE(Serve(service, type, message + unknown, payload, node.Deadline())) << type;
    }
  });
}

TEST(HostileCalls, ColumnsOfDifferentLengthsAreRefused) {
  Simulated(3, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    v1::GetRequest get;
    AddKey("k", get.mutable_keys());
    EXPECT_FALSE(AcceptGet(node.core(), {3, get.SerializeAsString(), 0, 0}));
    get.add_limits(1);
    EXPECT_TRUE(AcceptGet(node.core(), {3, get.SerializeAsString(), 0, 0}));
    get.add_offsets(0);
    get.add_offsets(0);
    EXPECT_FALSE(AcceptGet(node.core(), {3, get.SerializeAsString(), 0, 0}));
    v1::PutRequest put;
    AddKey("k", put.mutable_keys());
    put.mutable_origin()->set_node("peer:1");
    EXPECT_FALSE(AcceptPut(node.core(), {2, put.SerializeAsString(), 8, 0}));
    put.add_value_sizes(~uint64_t{0} - 7);  // Wraps around to 0 with the trailer.
    EXPECT_FALSE(AcceptPut(node.core(), {2, put.SerializeAsString(), 0, 0}));
    v1::ReadRequest read;
    read.add_extents();
    EXPECT_FALSE(AcceptRead(node.core(), {6, read.SerializeAsString(), 0, 0}));
  });
}

// Protobuf would complain of it on the standard error of the host's process.
TEST(HostileCalls, NamesThatAreNotTextAreRefusedWithoutAWord) {
  Simulated(31, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    ::testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) {
      v1::RouteRequest request;
      AddKey("k", request.mutable_keys());
      request.mutable_origin()->set_node(i == 0 ? "peer\xff:1" : "peer:1");
      request.mutable_scope()->set_tenant(i == 1 ? "\xc0\xaf" : "tenant");
      const std::string message = request.SerializeAsString();
      (void)Serve(service, static_cast<uint16_t>(MessageType::kRoute), message, 0, node.Deadline());
    }
    EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(node.core().names.IndexOf("peer\xff:1"), std::nullopt);
    EXPECT_FALSE(node.core().scopes.Intern({"\xc0\xaf", "", ""}).has_value());
    EXPECT_FALSE(node.core().scopes.Intern({"tenant", "\xff", ""}).has_value());
    EXPECT_TRUE(node.core().scopes.Intern({"tenant", "", ""}).has_value());
  });
}

TEST(HostileCalls, MutatedMessagesNeverCrashAndLeaveNoDebt) {
  Simulated(4, [](TestCluster& cluster) {
    auto& node = cluster.Start("a", 64 * testing::kMiB);
    NodeService service;
    service.Open(node.core());
    std::mt19937_64 random(12);
    const uint64_t deadline_ms = node.Deadline(1);
    for (int round = 0; round < 30'000; ++round) {
      const auto type = static_cast<uint16_t>(1 + random() % 16);
      auto [message, payload] = Sample(node, static_cast<MessageType>(type));
      if (round % 10 == 0) {
        message.assign(random() % 100, '\0');
        for (char& byte : message) byte = static_cast<char>(random());
      } else {
        Mutate(random, &message);
      }
      if (static_cast<MessageType>(type) == MessageType::kPing) continue;  // May ask for a view.
      (void)Serve(service, type, message, payload, deadline_ms);
    }
    // Writes that were not published wait for the reconciler; nothing else is left.
    cluster.runtime().SleepMs(200'000);
    ASSERT_TRUE(RemoveScope(node.core(), {}, node.Deadline()).ok());
    uint64_t left = 0;
    for (size_t shard = 0; shard < ExtentStore::kIndexShards; ++shard) {
      left += node.core().extents.ShardExtents(shard).size();
    }
    EXPECT_LE(left, node.core().routes.route_count());  // Of scopes that a mutation made up.
  });
}

TEST(HostileCalls, QuestionsAboutNewScopesAndByNewPeersLeaveNothing) {
  Simulated(30, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    const auto ask = [&](MessageType type, auto message, int i) {
      message.mutable_scope()->set_tenant("tenant-" + std::to_string(i));
      message.mutable_origin()->set_node("peer-" + std::to_string(i) + ":1");
      EXPECT_TRUE(Serve(service, static_cast<uint16_t>(type), message.SerializeAsString(), 0,
                        node.Deadline()));
    };
    const size_t scopes = node.core().scopes.size();
    const size_t names = node.core().names.size();
    for (int i = 0; i < 50; ++i) {
      auto get = WithKey(v1::GetRequest());
      get.add_limits(100);
      get.set_has_storage(true);
      ask(MessageType::kGet, get, i);
      ask(MessageType::kExist, WithKey(v1::ExistRequest()), i);
      ask(MessageType::kRoute, WithKey(v1::RouteRequest()), i);
      ask(MessageType::kRemove, WithKey(v1::RemoveRequest()), i);
      ask(MessageType::kRemoveAll, v1::RemoveAllRequest(), i);
    }
    EXPECT_EQ(node.core().scopes.size(), scopes);
    EXPECT_EQ(node.core().names.size(), names);
  });
}

TEST(HostileCalls, NobodyHasANameOfMegabytes) {
  Simulated(31, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    auto remove = WithKey(v1::RemoveRequest());
    remove.mutable_origin()->set_node(std::string(1 << 20, 'n'));
    EXPECT_FALSE(Serve(service, static_cast<uint16_t>(MessageType::kRemove),
                       remove.SerializeAsString(), 0, node.Deadline()));
  });
}

TEST(HostileCalls, TheReplyToAMigrationIsReadableWhateverTheKeyIs) {
  Simulated(32, [](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    auto migrate = From(v1::MigrateRequest());
    migrate.set_key("\xff\xfe");
    migrate.set_source_segment("here");
    migrate.add_target_segments("there");
    migrate.set_limit_ms(1'000);
    v1::MigrateReply reply;
    for (uint64_t asked = 1; asked < 100 && !reply.finished(); ++asked) {
      migrate.mutable_origin()->set_sequence(asked);
      auto call = service.Accept({static_cast<uint16_t>(MessageType::kMigrate),
                                  migrate.SerializeAsString(), 0, node.Deadline()});
      ASSERT_TRUE(call && call->Prepare(true));
      Reply answer;
      ASSERT_TRUE(call->Run(true, answer));
      ASSERT_TRUE(reply.ParseFromString(answer.message)) << "asked " << asked << " times";
      migrate.set_execution(reply.execution());
      cluster.runtime().SleepMs(100);
    }
    EXPECT_NE(reply.code(), kItemOk);
    EXPECT_FALSE(reply.reason().empty());
  });
}

}  // namespace
}  // namespace mooncake::node

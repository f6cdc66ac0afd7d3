#include "unit/transfer/contract.h"

#include <dirent.h>

#include <algorithm>
#include <cstring>

#include "unit/transfer/test_service.h"

namespace mooncake::transfer {

size_t OpenDescriptors() {
  DIR* folder = opendir("/proc/self/fd");
  size_t count = 0;
  while (folder != nullptr && readdir(folder) != nullptr) ++count;
  if (folder != nullptr) closedir(folder);
  return count;
}

namespace {

// A serving peer.
struct Peer {
  explicit Peer(TransportWorld& world)
      : service(world.runtime()),
        transport(world.NewTransport()),
        endpoint(transport->Listen("127.0.0.1", 0, &service).value()) {}
  ~Peer() {
    service.Release();
    transport->Close();
    EXPECT_EQ(service.live_calls(), 0);
  }
  TestService service;
  std::unique_ptr<Transport> transport;
  std::string endpoint;
};

// Waits for what another thread is about to do.
bool Eventually(Runtime& runtime, const std::function<bool()>& condition) {
  for (int i = 0; i < 1'000 && !condition(); ++i) runtime.SleepMs(5);
  return condition();
}

// Runs a body with a world, a peer and a client.
void WithPeer(const WorldMaker& make,
              const std::function<void(TransportWorld&, Peer&, Transport&)>& body) {
  auto world = make();
  world->Run([&] {
    Peer peer(*world);
    auto client = world->NewTransport();
    body(*world, peer, *client);
    client->Close();
  });
}

TEST_P(TransportContract, EchoesMessageAndPayload) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    for (uint64_t size : {0ull, 1ull, 100ull, 16'384ull, 70'000ull, 3'000'000ull}) {
      TestCallSpec spec(peer.endpoint, "echo", size);
      const Call call = CallOne(client, spec);
      ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
      EXPECT_EQ(call.failure, CallFailure::kNone);
      EXPECT_EQ(spec.observer.message, "echo");
      EXPECT_EQ(spec.observer.payload, spec.bytes);
      EXPECT_EQ(spec.observer.sent_bytes, size);
      EXPECT_EQ(spec.observer.received_bytes, size);
      EXPECT_TRUE(spec.observer.in_order);
      EXPECT_LE(spec.observer.chunk_max, 512u << 10);  // They stay in a cache.
    }
  });
}

TEST_P(TransportContract, CarriesEmptyAndLargeMessages) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    for (size_t size : {0, 1, 16'000, 17'000, 5'000'000}) {
      TestCallSpec spec(peer.endpoint, std::string(size, 'e'), 1'000);
      const Call call = CallOne(client, spec);
      ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
      EXPECT_EQ(spec.observer.message, spec.message);
      EXPECT_EQ(spec.observer.payload, spec.bytes);
    }
  });
}

TEST_P(TransportContract, GathersAndScattersManyPieces) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    TestCallSpec spec(peer.endpoint, "echo", 300'000);
    spec.pieces.clear();
    const ConstBytes all(spec.bytes);
    for (size_t i = 0; i < 3'000; ++i) {
      spec.pieces.push_back(all.subspan(i * 100, 100));
      if (i % 7 == 0) spec.pieces.emplace_back();  // Empty ones do no harm.
    }
    spec.observer.split = [](MutableBytes buffer) {
      std::vector<MutableBytes> pieces;
      for (size_t at = 0, step = 0; at < buffer.size(); at += step) {
        step = std::min(buffer.size() - at, 1 + at % 999);
        pieces.push_back(buffer.subspan(at, step));
        if (step % 5 == 0) pieces.push_back(buffer.subspan(at, 0));
      }
      return pieces;
    };
    const Call call = CallOne(client, spec);
    ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
    EXPECT_EQ(spec.observer.payload, spec.bytes);
    EXPECT_TRUE(spec.observer.in_order);
  });
}

TEST_P(TransportContract, DropsPiecesWithoutMemory) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    TestCallSpec reply(peer.endpoint, "g 900000 9");
    reply.observer.split = [](MutableBytes buffer) {
      const MutableBytes none(static_cast<std::byte*>(nullptr), 300'000);
      return std::vector<MutableBytes>{buffer.subspan(0, 300'000), none, buffer.subspan(600'000)};
    };
    const Call call = CallOne(client, reply);
    ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
    auto expected = PatternBytes(900'000);
    std::fill(expected.begin() + 300'000, expected.begin() + 600'000, std::byte{0});
    EXPECT_EQ(reply.observer.payload, expected);

    TestCallSpec request(peer.endpoint, "drop", 10'500);
    ASSERT_TRUE(CallOne(client, request).status.ok());
    EXPECT_EQ(request.observer.message, "5500");
  });
}

TEST_P(TransportContract, RunsWhatMayBlockElsewhere) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    for (uint64_t size : {0ull, 500ull, 2'000'000ull}) {
      TestCallSpec spec(peer.endpoint, "blocking", size);
      const Call call = CallOne(client, spec);
      ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
      EXPECT_EQ(spec.observer.payload, spec.bytes);
    }
  });
}

TEST_P(TransportContract, EndsWithTheErrorOfOnReply) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    for (const char* message : {"g 0", "g 100000"}) {
      TestCallSpec spec(peer.endpoint, message);
      spec.observer.refuse = TooSmall("too small");
      const Call call = CallOne(client, spec);
      EXPECT_EQ(call.status.code(), ErrorCode::kTooSmall);
      EXPECT_EQ(call.failure, CallFailure::kLocal);
      TestCallSpec next(peer.endpoint, "echo", 10);
      EXPECT_TRUE(CallOne(client, next).status.ok());
    }
  });
}

TEST_P(TransportContract, ClosesOnlyTheConnectionOfARequestThatIsNotAccepted) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    std::vector<TestCallSpec> specs;
    for (const char* message : {"echo", "x", "echo", "s", "echo"}) {
      specs.emplace_back(peer.endpoint, message, 10);
    }
    std::vector<Call> calls;
    for (TestCallSpec& spec : specs) {
      spec.pieces = {ConstBytes(spec.bytes)};
      calls.push_back(spec.Make());
    }
    client.CallMany(calls);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_EQ(calls[i].status.ok(), specs[i].message == "echo") << i;
      if (calls[i].status.ok()) continue;
      EXPECT_EQ(calls[i].status.code(), ErrorCode::kTransport);
      EXPECT_EQ(calls[i].failure, CallFailure::kBroken);
    }
  });
}

TEST_P(TransportContract, PassesTheDeadlineOn) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    TestCallSpec spec(peer.endpoint, "time left");
    spec.deadline_ms = world.runtime().NowMs() + 60'000;
    ASSERT_TRUE(CallOne(client, spec).status.ok());
    EXPECT_LE(std::stoull(spec.observer.message), 60'000u);
    EXPECT_GT(std::stoull(spec.observer.message), 30'000u);
  });
}

TEST_P(TransportContract, EndsAtTheDeadline) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    const uint64_t start_ms = world.runtime().NowMs();
    TestCallSpec spec(peer.endpoint, "wait");
    spec.deadline_ms = start_ms + 60;
    const Call call = CallOne(client, spec);
    EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
    EXPECT_EQ(call.failure, CallFailure::kStalled);
    EXPECT_GE(world.runtime().NowMs(), start_ms + 60);
    EXPECT_LT(world.runtime().NowMs(), start_ms + world.kStallMs);

    TestCallSpec late(peer.endpoint, "echo");
    late.deadline_ms = 1;
    EXPECT_EQ(CallOne(client, late).failure, CallFailure::kStalled);
  });
}

TEST_P(TransportContract, ASilentPeerCostsOneStallLimit) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    const std::string silent = world.SilentEndpoint();
    for (int n : {1, 5}) {
      std::vector<TestCallSpec> specs;
      for (int i = 0; i < n; ++i) specs.emplace_back(i % 2 == 0 ? silent : peer.endpoint, "wait");
      std::vector<Call> calls;
      for (TestCallSpec& spec : specs) calls.push_back(spec.Make());
      const uint64_t start_ms = world.runtime().NowMs();
      client.CallMany(calls);
      const uint64_t took_ms = world.runtime().NowMs() - start_ms;
      EXPECT_GE(took_ms, world.kStallMs);
      EXPECT_LT(took_ms, 2 * world.kStallMs);
      for (const Call& call : calls) {
        EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
        EXPECT_EQ(call.failure, CallFailure::kStalled);
      }
    }
  });
}

TEST_P(TransportContract, SaysWhenNobodyListens) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer&, Transport& client) {
    TestCallSpec spec(world.RefusedEndpoint(), "echo", 10);
    const Call call = CallOne(client, spec);
    EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
    EXPECT_EQ(call.failure, CallFailure::kRefused);
    EXPECT_THAT(call.status.error().context, testing::HasSubstr(spec.endpoint));
  });
}

TEST_P(TransportContract, ServesTheHealthyPeersOfABatch) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    Peer second(world), third(world);
    std::vector<TestCallSpec> specs;
    for (int round = 0; round < 3; ++round) {
      specs.emplace_back(peer.endpoint, "echo", 700'000);
      specs.emplace_back(world.RefusedEndpoint(), "echo", 700'000);
      specs.emplace_back(second.endpoint, "g 2000000 13");
      specs.emplace_back(world.SilentEndpoint(), "echo", 700'000);
      specs.emplace_back(third.endpoint, "put", 1'000'000);
    }
    std::vector<Call> calls;
    for (TestCallSpec& spec : specs) {
      spec.pieces = {ConstBytes(spec.bytes)};
      calls.push_back(spec.Make());
    }
    client.CallMany(calls);
    for (size_t i = 0; i < calls.size(); i += 5) {
      EXPECT_TRUE(calls[i].status.ok()) << calls[i].status.error().ToString();
      EXPECT_EQ(specs[i].observer.payload, specs[i].bytes);
      EXPECT_EQ(calls[i + 1].failure, CallFailure::kRefused);
      EXPECT_TRUE(calls[i + 2].status.ok()) << calls[i + 2].status.error().ToString();
      EXPECT_EQ(specs[i + 2].observer.payload, PatternBytes(2'000'000));
      EXPECT_EQ(calls[i + 3].failure, CallFailure::kStalled);
      EXPECT_TRUE(calls[i + 4].status.ok()) << calls[i + 4].status.error().ToString();
      EXPECT_EQ(specs[i + 4].observer.message, "ok");
    }
  });
}

TEST_P(TransportContract, AnEmptyBatchDoesNothing) {
  WithPeer(GetParam(), [](TransportWorld&, Peer&, Transport& client) {
    client.CallMany({});
    client.AccessMany({});
  });
}

TEST_P(TransportContract, TouchesNothingAfterThePeerDiedWithinTheReply) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer&, Transport& client) {
    Peer victim(world);
    TestCallSpec spec(victim.endpoint, "g 24000000");
    bool killed = false;
    spec.observer.on_receive = [&] {
      if (!std::exchange(killed, true)) world.Kill(*victim.transport, victim.endpoint);
    };
    const Call call = CallOne(client, spec);
    EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
    EXPECT_EQ(call.failure, CallFailure::kBroken);
    std::fill(spec.observer.payload.begin(), spec.observer.payload.end(), std::byte{0x5a});
    world.runtime().SleepMs(20);
    EXPECT_EQ(
        std::count(spec.observer.payload.begin(), spec.observer.payload.end(), std::byte{0x5a}),
        24'000'000);
    EXPECT_TRUE(Eventually(world.runtime(), [&] { return victim.service.live_calls() == 0; }));
  });
}

TEST_P(TransportContract, EndsTheServersCallWhenTheCallerLeaves) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    TestCallSpec spec(peer.endpoint, "wait");
    spec.deadline_ms = world.runtime().NowMs() + 30;
    EXPECT_EQ(CallOne(client, spec).failure, CallFailure::kStalled);
    peer.service.Release();
    EXPECT_TRUE(Eventually(world.runtime(), [&] { return peer.service.live_calls() == 0; }));
  });
}

TEST_P(TransportContract, KeepsDescriptorsFlat) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    size_t before = 0;
    for (int i = 0; i < 10'000; ++i) {
      TestCallSpec spec(peer.endpoint, "echo", 8);
      ASSERT_TRUE(CallOne(client, spec).status.ok());
      if (i == 10) before = OpenDescriptors();
    }
    EXPECT_EQ(OpenDescriptors(), before);
  });
}

TEST_P(TransportContract, ServesManyThreads) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    std::atomic<int> good = 0;
    std::vector<std::unique_ptr<Thread>> threads;
    for (int t = 0; t < 6; ++t) {
      threads.push_back(world.runtime().Spawn("caller", [&, t] {
        for (int i = 0; i < 60; ++i) {
          const char* message = i % 3 == 0 ? "blocking" : "echo";
          TestCallSpec spec(peer.endpoint, message, t * 10'000 + i * 111);
          if (CallOne(client, spec).status.ok() && spec.observer.payload == spec.bytes) ++good;
        }
      }));
    }
    for (auto& thread : threads) thread->Join();
    EXPECT_EQ(good.load(), 360);
  });
}

TEST_P(TransportContract, SendsWhatOnSendWroteIntoALaterPiece) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    TestCallSpec spec(peer.endpoint, "echo", 1'000'000);
    uint64_t sum = 0;
    std::byte trailer[8] = {};
    spec.pieces.emplace_back(trailer);
    spec.observer.on_send = [&](size_t piece, ConstBytes chunk) {
      if (piece != 0) return;
      for (std::byte byte : chunk) sum += static_cast<uint64_t>(byte);
      std::memcpy(trailer, &sum, sizeof sum);
    };
    ASSERT_TRUE(CallOne(client, spec).status.ok());
    uint64_t expected = 0, arrived = 0;
    for (std::byte byte : spec.bytes) expected += static_cast<uint64_t>(byte);
    ASSERT_EQ(spec.observer.payload.size(), 1'000'008u);
    std::memcpy(&arrived, spec.observer.payload.data() + 1'000'000, sizeof arrived);
    EXPECT_EQ(arrived, expected);
  });
}

TEST_P(TransportContract, AsksBeforeTheEndOfThePayloadIsSent) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    for (uint64_t size : {0ull, 100ull, 1'000'000ull}) {
      for (bool follows : {true, false}) {
        TestCallSpec spec(peer.endpoint, "echo", size);
        const std::byte trailer[8] = {};
        spec.pieces.emplace_back(trailer);
        spec.observer.end_size = sizeof trailer;
        int asked = 0;
        spec.observer.on_end = [&] {
          ++asked;
          EXPECT_GE(spec.observer.sent_bytes, size);
          return follows ? Ok() : Status(Conflict("no more"));
        };
        const int served = peer.service.served();
        const Call call = CallOne(client, spec);
        EXPECT_EQ(asked, 1);
        EXPECT_EQ(call.status.code(), follows ? ErrorCode::kOk : ErrorCode::kConflict);
        EXPECT_EQ(call.failure, follows ? CallFailure::kNone : CallFailure::kLocal);
        for (int i = 0; i < 1'000 && peer.service.live_calls() > 0; ++i) world.runtime().SleepMs(5);
        EXPECT_EQ(peer.service.live_calls(), 0);
        EXPECT_EQ(peer.service.served() - served, follows ? 1 : 0);
      }
    }
  });
}

TEST_P(TransportContract, EndsWhenInterrupted) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport& client) {
    world.SetInterrupted(true);
    for (int n : {1, 2}) {
      std::vector<TestCallSpec> specs;
      for (int i = 0; i < n; ++i) specs.emplace_back(peer.endpoint, "wait");
      std::vector<Call> calls;
      for (TestCallSpec& spec : specs) calls.push_back(spec.Make());
      client.CallMany(calls);
      for (const Call& call : calls) {
        EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
        EXPECT_EQ(call.failure, CallFailure::kLocal);
      }
    }
    world.SetInterrupted(false);
  });
}

TEST_P(TransportContract, CloseEndsCallsInProgress) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport&) {
    auto client = world.NewTransport();
    TestCallSpec spec(peer.endpoint, "wait");
    Call call;
    auto thread = world.runtime().Spawn("caller", [&] { call = CallOne(*client, spec); });
    ASSERT_TRUE(Eventually(world.runtime(), [&] { return peer.service.accepted() > 0; }));
    client->Close();
    thread->Join();
    EXPECT_EQ(call.failure, CallFailure::kLocal);
    EXPECT_EQ(call.status.code(), ErrorCode::kInvalidState);
    TestCallSpec next(peer.endpoint, "echo");
    EXPECT_EQ(CallOne(*client, next).failure, CallFailure::kLocal);
    client->Close();
  });
}

TEST_P(TransportContract, ReachesAPeerThatCameBackAtTheSameEndpoint) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer&, Transport& client) {
    auto first = std::make_unique<Peer>(world);
    const std::string endpoint = first->endpoint;
    TestCallSpec before(endpoint, "echo", 10);
    ASSERT_TRUE(CallOne(client, before).status.ok());
    first.reset();
    TestCallSpec between(endpoint, "echo", 10);
    EXPECT_EQ(CallOne(client, between).status.code(), ErrorCode::kTransport);

    TestService service(world.runtime());
    auto second = world.NewTransport();
    const int port = std::stoi(endpoint.substr(endpoint.rfind(':') + 1));
    ASSERT_TRUE(second->Listen("127.0.0.1", static_cast<uint16_t>(port), &service).ok());
    client.Forget(endpoint);
    TestCallSpec after(endpoint, "echo", 10);
    const Call call = CallOne(client, after);
    EXPECT_TRUE(call.status.ok()) << call.status.error().ToString();
    second->Close();
  });
}

TEST_P(TransportContract, NamesAPortInUse) {
  WithPeer(GetParam(), [](TransportWorld& world, Peer& peer, Transport&) {
    TestService service(world.runtime());
    auto other = world.NewTransport();
    const std::string port = peer.endpoint.substr(peer.endpoint.rfind(':') + 1);
    const auto endpoint =
        other->Listen("127.0.0.1", static_cast<uint16_t>(std::stoi(port)), &service);
    EXPECT_EQ(endpoint.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(endpoint.error().context, testing::HasSubstr(peer.endpoint));
  });
}

TEST_P(TransportContract, ReachesRegisteredMemoryWhereItSaysSo) {
  WithPeer(GetParam(), [](TransportWorld&, Peer& peer, Transport& client) {
    auto memory = PatternBytes(100'000);
    const auto token = peer.transport->RegisterMemory(memory);
    ASSERT_TRUE(token.ok());
    std::vector<std::byte> local(1'000);
    RemoteAccess access = {peer.endpoint, *token, 5'000, local, false, {}};
    client.AccessMany({&access, 1});
    if (!client.Capabilities().one_sided) {
      EXPECT_EQ(*token, "");
      EXPECT_EQ(access.status.code(), ErrorCode::kUnsupported);
      return;
    }
    ASSERT_TRUE(access.status.ok()) << access.status.error().ToString();
    EXPECT_TRUE(std::equal(local.begin(), local.end(), memory.begin() + 5'000));
    std::fill(local.begin(), local.end(), std::byte{1});
    access.write = true;
    client.AccessMany({&access, 1});
    EXPECT_EQ(memory[5'999], std::byte{1});
    access.offset = 99'001;
    client.AccessMany({&access, 1});
    EXPECT_EQ(access.status.code(), ErrorCode::kInvalidArgument);
    peer.transport->UnregisterMemory(memory);
    access.offset = 0;
    client.AccessMany({&access, 1});
    EXPECT_EQ(access.status.code(), ErrorCode::kTransport);
  });
}

}  // namespace
}  // namespace mooncake::transfer

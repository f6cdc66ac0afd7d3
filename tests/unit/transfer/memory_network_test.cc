// The faults of the simulated network.
#include "transfer/memory/memory_network.h"

#include <gtest/gtest.h>

#include "runtime/sim_runtime.h"
#include "unit/transfer/test_service.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStallMs = 1'000;

// A network with one serving peer and one client, inside a simulation.
struct World {
  explicit World(Runtime& runtime_in)
      : runtime(runtime_in),
        network(runtime, kStallMs),
        service(runtime),
        peer(network),
        client(network),
        endpoint(peer.Listen("peer", 0, &service).value()) {
    EXPECT_TRUE(client.Listen("client", 0, &client_service).ok());
  }
  ~World() { service.Release(); }

  Call Run(const char* message, uint64_t payload_size = 0) {
    TestCallSpec spec(endpoint, message, payload_size);
    const uint64_t start_ms = runtime.NowMs();
    Call call = CallOne(client, spec);
    took_ms = runtime.NowMs() - start_ms;
    return call;
  }

  Runtime& runtime;
  MemoryNetwork network;
  TestService service;
  TestService client_service{runtime};
  MemoryTransport peer, client;
  std::string endpoint;
  uint64_t took_ms = 0;
};

void Simulate(const std::function<void(World&)>& body, uint64_t seed = 1) {
  runtime::SimRuntime runtime(seed);
  runtime.Run([&] {
    World world(runtime);
    body(world);
  });
}

TEST(MemoryNetwork, DelaysBothWays) {
  Simulate([](World& world) {
    world.network.SetFaults({.latency_ms_min = 30, .latency_ms_max = 50});
    EXPECT_TRUE(world.Run("echo", 100).status.ok());
    EXPECT_GE(world.took_ms, 60u);
    EXPECT_LE(world.took_ms, 100u);
  });
}

TEST(MemoryNetwork, LosesRequestsAndReplies) {
  Simulate([](World& world) {
    world.network.SetFaults({.drop_request = 1});
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kStalled);
    EXPECT_EQ(world.took_ms, kStallMs);
    EXPECT_EQ(world.service.served(), 0);
    world.network.SetFaults({.drop_reply = 1});
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kStalled);
    EXPECT_EQ(world.service.served(), 1);
    EXPECT_EQ(world.service.live_calls(), 0);
  });
}

TEST(MemoryNetwork, BreaksConnections) {
  Simulate([](World& world) {
    world.network.SetFaults({.reset_request = 1});
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kBroken);
    EXPECT_EQ(world.service.served(), 0);
    world.network.SetFaults({.reset_reply = 1});
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kBroken);
    EXPECT_EQ(world.service.served(), 1);
  });
}

TEST(MemoryNetwork, DeliversTwice) {
  Simulate([](World& world) {
    world.network.SetFaults({.duplicate = 1, .duplicate_ms_max = 500});
    EXPECT_TRUE(world.Run("put", 10'000).status.ok());
    world.runtime.SleepMs(600);
    EXPECT_EQ(world.service.served(), 2);
    EXPECT_EQ(world.service.live_calls(), 0);
  });
}

TEST(MemoryNetwork, SeparatesGroups) {
  Simulate([](World& world) {
    world.network.Partition({{world.endpoint}, {"client:2"}});
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kStalled);
    world.network.Heal();
    EXPECT_TRUE(world.Run("echo").status.ok());
    world.network.Block(world.endpoint, "client:2", true);  // Replies only.
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kStalled);
    EXPECT_EQ(world.service.served(), 2);
  });
}

TEST(MemoryNetwork, RefusesForANodeThatIsDown) {
  Simulate([](World& world) {
    world.network.SetDown(world.endpoint, true);
    EXPECT_EQ(world.Run("echo").failure, CallFailure::kRefused);
    world.network.SetDown(world.endpoint, false);
    EXPECT_TRUE(world.Run("echo").status.ok());
  });
}

TEST(MemoryNetwork, ServesWhatArrivedDuringAPauseLater) {
  Simulate([](World& world) {
    world.network.SetPaused(world.endpoint, true);
    EXPECT_EQ(world.Run("put", 1'000).failure, CallFailure::kStalled);
    EXPECT_EQ(world.took_ms, kStallMs);
    EXPECT_EQ(world.service.served(), 0);
    world.network.SetPaused(world.endpoint, false);
    world.runtime.SleepMs(200);
    EXPECT_EQ(world.service.served(), 1);
    EXPECT_EQ(world.service.live_calls(), 0);
  });
}

TEST(MemoryNetwork, TearsOneSidedCopies) {
  Simulate([](World& world) {
    world.network.SetFaults({.copy_step_bytes = 100});
    std::vector<std::byte> memory(10'000, std::byte{1}), local(10'000);
    const std::string token = world.peer.RegisterMemory(memory).value();
    auto writer = world.runtime.Spawn("writer", [&] {
      world.runtime.Yield();
      std::fill(memory.begin(), memory.end(), std::byte{2});
    });
    RemoteAccess access = {world.endpoint, token, 0, local, false, {}};
    world.client.AccessMany({&access, 1});
    ASSERT_TRUE(access.status.ok());
    EXPECT_EQ(local.front(), std::byte{1});
    EXPECT_EQ(local.back(), std::byte{2});
    writer->Join();
  });
}

TEST(MemoryNetwork, ASeedGivesOneRun) {
  auto run = [](uint64_t seed) {
    runtime::SimRuntime runtime(seed);
    runtime.Run([&] {
      World world(runtime);
      world.network.SetFaults({.latency_ms_max = 20,
                               .drop_request = 0.1,
                               .drop_reply = 0.1,
                               .reset_request = 0.1,
                               .reset_reply = 0.1,
                               .duplicate = 0.2});
      std::vector<std::unique_ptr<Thread>> threads;
      for (int t = 0; t < 4; ++t) {
        threads.push_back(runtime.Spawn("caller", [&world, t] {
          TestCallSpec spec(world.endpoint, t % 2 == 0 ? "echo" : "blocking", 200'000);
          for (int i = 0; i < 20; ++i) CallOne(world.client, spec);
        }));
      }
      for (auto& thread : threads) thread->Join();
      runtime.SleepMs(5'000);
      EXPECT_EQ(world.service.live_calls(), 0);
    });
    return runtime.TraceHash();
  };
  EXPECT_EQ(run(3), run(3));
  EXPECT_NE(run(3), run(4));
}

}  // namespace
}  // namespace mooncake::transfer

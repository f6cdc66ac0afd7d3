#include "node/migration_queue.h"

#include <gtest/gtest.h>

#include "node/migration_worker.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using testing::kKiB;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;
using testing::ValueOf;

struct World {
  explicit World(TestCluster& cluster, MigrationQueueOptions options = {})
      : runtime(cluster.runtime()),
        a(cluster.Start("a")),
        b(cluster.Start("b")),
        admin(cluster.Start("admin", 0)),
        queue(admin.core(), options) {}

  void Put(const std::string& key) {
    ReplicateConfig policy;
    policy.preferred_segments = {"a-segment"};
    ASSERT_TRUE(admin.Put(key, ValueOf(key, 10 * kKiB), &policy).ok());
  }
  MigrationTask Submit(const std::string& key, bool move, std::string executor = {},
                       std::optional<uint32_t> retries = std::nullopt) {
    return queue.Submit({{}, key, move, "a-segment", {"b-segment"}}, std::move(executor), retries)
        .value();
  }
  MigrationTask Await(const std::string& id, MigrationState state, uint64_t limit_ms = 200'000) {
    const uint64_t deadline_ms = runtime.NowMs() + limit_ms;
    while (queue.Get(id)->state != state && runtime.NowMs() < deadline_ms) runtime.SleepMs(20);
    return queue.Get(id).value();
  }

  Runtime& runtime;
  TestNode& a;
  TestNode& b;
  TestNode& admin;
  MigrationQueue queue;
};

TEST(MigrationQueue, ATaskEndsSucceededAndTheRouteShowsIt) {
  Simulated(1, [](TestCluster& cluster) {
    World world(cluster);
    world.Put("k");
    const MigrationTask task = world.Submit("k", true);
    EXPECT_EQ(task.id, "route-migration-1");
    EXPECT_EQ(task.state, MigrationState::kPending);
    const MigrationTask done = world.Await(task.id, MigrationState::kSucceeded);
    EXPECT_EQ(done.state, MigrationState::kSucceeded) << done.last_error.ToString();
    EXPECT_EQ(done.attempts, 1u);
    EXPECT_EQ(done.execution_id, "a:1/1");  // The source replica's owner did it.
    const auto route = world.admin.Find("k");
    ASSERT_EQ(route->replicas.size(), 1u);
    EXPECT_EQ(world.admin.core().names.NameOf(route->replicas[0].owner), "b:1");
    EXPECT_EQ(world.admin.Get("k").value(), ValueOf("k", 10 * kKiB));
  });
}

TEST(MigrationQueue, TheNamedExecutorDoesIt) {
  Simulated(2, [](TestCluster& cluster) {
    World world(cluster);
    for (const std::string executor : {"b", "b:1", "admin"}) {
      const std::string key = "by-" + executor;
      world.Put(key);
      const auto done =
          world.Await(world.Submit(key, false, executor).id, MigrationState::kSucceeded);
      EXPECT_EQ(done.state, MigrationState::kSucceeded) << done.last_error.ToString();
      EXPECT_EQ(done.execution_id.substr(0, 2), executor == "admin" ? "ad" : "b:");
      EXPECT_EQ(world.admin.Find(key)->replicas.size(), 2u);
    }
  });
}

TEST(MigrationQueue, WhatCannotHelpFailsAtOnce) {
  Simulated(3, [](TestCluster& cluster) {
    World world(cluster);
    const auto failed = world.Await(world.Submit("absent", true).id, MigrationState::kFailed);
    EXPECT_EQ(failed.state, MigrationState::kFailed);
    EXPECT_EQ(failed.attempts, 1u);
    EXPECT_EQ(failed.last_error.code, ErrorCode::kNotFound);
    EXPECT_EQ(world.queue.Submit({{}, "", true, "a", {"b"}}).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(world.queue.Get("route-migration-9").code(), ErrorCode::kNotFound);
    EXPECT_EQ(world.queue.Cancel("route-migration-9").code(), ErrorCode::kNotFound);
    EXPECT_EQ(world.queue.Cancel(failed.id).code(), ErrorCode::kInvalidState);
  });
}

TEST(MigrationQueue, ALostExecutorIsTriedAgainWithGrowingDelaysAndThenFails) {
  Simulated(4, [](TestCluster& cluster) {
    World world(cluster);
    world.Put("k");
    const auto task = world.Submit("k", true, "nobody", 2);
    const auto waiting = world.Await(task.id, MigrationState::kRetryWait);
    EXPECT_EQ(waiting.state, MigrationState::kRetryWait);
    EXPECT_EQ(waiting.next_retry_at_ms - waiting.updated_at_ms, 3'000u);
    const auto failed = world.Await(task.id, MigrationState::kFailed);
    EXPECT_EQ(failed.attempts, 3u);
    EXPECT_EQ(failed.last_error.code, ErrorCode::kTransport);
    EXPECT_GE(failed.updated_at_ms - failed.created_at_ms, 9'000u);  // 3 s, then 6 s.
    EXPECT_EQ(world.admin.Find("k")->replicas.size(), 1u);
  });
}

TEST(MigrationQueue, AnExecutorThatReturnsFinishesTheTask) {
  Simulated(5, [](TestCluster& cluster) {
    World world(cluster);
    world.Put("k");
    cluster.network().SetDown(world.b.node().endpoint(), true);
    const auto task = world.Submit("k", true, "b");
    EXPECT_EQ(world.Await(task.id, MigrationState::kRetryWait).state, MigrationState::kRetryWait);
    cluster.network().SetDown(world.b.node().endpoint(), false);
    const auto done = world.Await(task.id, MigrationState::kSucceeded);
    EXPECT_EQ(done.state, MigrationState::kSucceeded) << done.last_error.ToString();
    EXPECT_GT(done.attempts, 1u);
  });
}

TEST(MigrationQueue, ATaskWhoseExecutorForgotItIsJudgedByTheRoute) {
  Simulated(6, [](TestCluster& cluster) {
    World world(cluster);
    world.Put("k");
    // Moved by somebody else before the task's executor, which does not live, is missed.
    ASSERT_TRUE(
        Migrate(world.a.core(), {{}, "k", true, "a-segment", {"b-segment"}}, world.a.Deadline())
            .ok());
    const auto done = world.Await(world.Submit("k", true, "nobody").id, MigrationState::kSucceeded);
    EXPECT_EQ(done.state, MigrationState::kSucceeded);
  });
}

TEST(MigrationQueue, AnExecutorThatIsOutOfTimeIsJudgedByTheRouteToo) {
  Simulated(10, [](TestCluster& cluster) {
    MigrationQueueOptions options;
    options.attempt_timeout_ms = 500;  // Less than one look at the executor.
    options.poll_interval_ms = 1'000;
    World world(cluster, options);
    world.Put("k");
    const auto done = world.Await(world.Submit("k", true, "b", 0).id, MigrationState::kSucceeded);
    EXPECT_EQ(done.state, MigrationState::kSucceeded) << done.last_error.ToString();
    EXPECT_EQ(done.attempts, 1u);
  });
}

TEST(MigrationQueue, EndsSoonWhateverItsExecutorDoes) {
  Simulated(11, [](TestCluster& cluster) {
    TestNode& a = cluster.Start("a");
    TestNode& b = cluster.Start("b");
    const ReplicateConfig there{.preferred_segments = {"a-segment"}};
    ASSERT_TRUE(a.Put("k", ValueOf("k", 10 * kKiB), &there).ok());
    auto queue = std::make_unique<MigrationQueue>(a.core(), MigrationQueueOptions{});
    cluster.network().SetPaused(b.node().endpoint(), true);
    ASSERT_TRUE(queue->Submit({{}, "k", true, "a-segment", {"b-segment"}}, "a").ok());
    cluster.runtime().SleepMs(300);
    const uint64_t start_ms = cluster.runtime().NowMs();
    queue.reset();
    EXPECT_LE(cluster.runtime().NowMs() - start_ms, 500u);
    cluster.network().SetPaused(b.node().endpoint(), false);
  });
}

TEST(MigrationQueue, AWaitingTaskCanBeCancelled) {
  Simulated(7, [](TestCluster& cluster) {
    World world(cluster);
    world.Put("k");
    const auto task = world.Submit("k", true, "nobody");
    EXPECT_EQ(world.Await(task.id, MigrationState::kRetryWait).state, MigrationState::kRetryWait);
    ASSERT_TRUE(world.queue.Cancel(task.id).ok());
    world.runtime.SleepMs(60'000);
    EXPECT_EQ(world.queue.Get(task.id)->state, MigrationState::kCancelled);
    EXPECT_EQ(world.queue.Get(task.id)->attempts, 1u);
  });
}

TEST(MigrationQueue, TheNumberOfUnfinishedTasksIsBounded) {
  Simulated(8, [](TestCluster& cluster) {
    MigrationQueueOptions options;
    options.tasks_max = 3;
    World world(cluster, options);
    world.Put("k");
    for (int i = 0; i < 3; ++i) world.Submit("k", true, "nobody");
    const MigrationOrder order{{}, "k", true, "a-segment", {"b-segment"}};
    EXPECT_EQ(world.queue.Submit(order).code(), ErrorCode::kBackPressure);
    world.Await("route-migration-2", MigrationState::kRetryWait);
    ASSERT_TRUE(world.queue.Cancel("route-migration-2").ok());
    EXPECT_TRUE(world.queue.Submit(order).ok());
    EXPECT_EQ(world.queue.Get("route-migration-2").code(), ErrorCode::kNotFound);
    EXPECT_EQ(world.queue.List().size(), 3u);
  });
}

TEST(MigrationWorker, RemembersHowItWentAndRefusesNonsense) {
  Simulated(9, [](TestCluster& cluster) {
    World world(cluster);
    MigrationWorker& worker = world.a.core().migrations;
    EXPECT_EQ(worker.Submit({{}, "k", true, "a-segment", {}}, 0).code(),
              ErrorCode::kInvalidArgument);
    EXPECT_EQ(worker.Get(7).code(), ErrorCode::kNotFound);
    const uint64_t id =
        worker.Submit({{}, "k", true, "a-segment", {"b-segment"}}, world.a.Deadline()).value();
    for (int i = 0; i < 1'000 && !worker.Get(id)->finished; ++i) world.runtime.SleepMs(10);
    ASSERT_TRUE(worker.Get(id)->finished);
    EXPECT_EQ(worker.Get(id)->status.code(), ErrorCode::kNotFound);
  });
}

}  // namespace
}  // namespace mooncake::node

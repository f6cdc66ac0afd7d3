#include "node/dedup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace mooncake::node {
namespace {

using Verdict = DedupTable::Verdict;

TEST(DedupTable, ReturnsTheFirstOutcomeAgain) {
  DedupTable table;
  std::string reply;
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kNew);
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kRunning);
  table.Finish("a:1", 7, "first");
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kDone);
  EXPECT_EQ(reply, "first");
  table.Finish("a:1", 7, "second");
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kDone);
  EXPECT_EQ(reply, "first");
}

TEST(DedupTable, TellsOriginsAndSequencesApart) {
  DedupTable table;
  std::string reply;
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kNew);
  EXPECT_EQ(table.Begin("a:2", 7, &reply), Verdict::kNew);
  EXPECT_EQ(table.Begin("a:1", 8, &reply), Verdict::kNew);
}

TEST(DedupTable, SequenceZeroIsNeverRemembered) {
  DedupTable table;
  std::string reply;
  EXPECT_EQ(table.Begin("a:1", 0, &reply), Verdict::kNew);
  table.Finish("a:1", 0, "x");
  EXPECT_EQ(table.Begin("a:1", 0, &reply), Verdict::kNew);
}

TEST(DedupTable, AnAbandonedRequestMayComeAgain) {
  DedupTable table;
  std::string reply;
  table.Begin("a:1", 7, &reply);
  table.Abandon("a:1", 7);
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kNew);
  table.Finish("a:1", 7, "done");
  table.Abandon("a:1", 7);  // Too late: it has an outcome.
  EXPECT_EQ(table.Begin("a:1", 7, &reply), Verdict::kDone);
  table.Abandon("nobody:1", 1);
}

TEST(DedupTable, ForgetsTheOldestOutcomesOfAnOrigin) {
  DedupTable table;
  std::string reply;
  for (uint64_t sequence = 1; sequence <= 1000; ++sequence) {
    ASSERT_EQ(table.Begin("a:1", sequence, &reply), Verdict::kNew);
    table.Finish("a:1", sequence, std::to_string(sequence));
  }
  EXPECT_EQ(table.Begin("a:1", 1000, &reply), Verdict::kDone);
  EXPECT_EQ(reply, "1000");
  EXPECT_EQ(table.Begin("a:1", 900, &reply), Verdict::kDone);
  EXPECT_EQ(table.Begin("a:1", 1, &reply), Verdict::kNew);
}

TEST(DedupTable, ForgetsTheOriginsThatWereSilentLongest) {
  DedupTable table;
  std::string reply;
  table.Begin("first:1", 1, &reply);
  table.Finish("first:1", 1, "x");
  for (int i = 0; i < 20'000; ++i) {
    const std::string origin = "n" + std::to_string(i) + ":1";
    table.Begin(origin, 1, &reply);
    table.Finish(origin, 1, "y");
  }
  EXPECT_EQ(table.Begin("n19999:1", 1, &reply), Verdict::kDone);
  EXPECT_EQ(table.Begin("first:1", 1, &reply), Verdict::kNew);
}

TEST(DedupTable, LetsOneOfManyThreadsServe) {
  DedupTable table;
  std::atomic<int> served = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (uint64_t sequence = 1; sequence <= 200; ++sequence) {
        std::string reply;
        if (table.Begin("a:1", sequence, &reply) != Verdict::kNew) continue;
        ++served;
        table.Finish("a:1", sequence, "done");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served, 200);
}

}  // namespace
}  // namespace mooncake::node

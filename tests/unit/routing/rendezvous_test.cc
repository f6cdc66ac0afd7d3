#include "routing/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace mooncake::routing {
namespace {

double ExactNegativeLog2(uint64_t hash) {
  // From the distance to the top where hashes are high: 1 - x is exact, x is not.
  uint64_t odd = hash | 1;
  if (odd < uint64_t{1} << 63) return 64 - std::log2(static_cast<double>(odd));
  return -std::log1p(-std::ldexp(static_cast<double>(~odd + 1), -64)) / std::log(2.0);
}

TEST(NegativeLog2, IsRightWithinATenthOfAPercent) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200'000; ++i) {
    // Magnitudes from all bits down to hashes next to the top, where the winners are.
    uint64_t hash = random() >> (random() % 60);
    if (i % 2 == 0) hash = ~hash;
    double exact = ExactNegativeLog2(hash);
    double found = std::ldexp(static_cast<double>(NegativeLog2(hash)), -50);
    ASSERT_NEAR(found, exact, exact * 1e-3 + 1e-14) << hash;
  }
}

TEST(NegativeLog2, FallsAndStaysInItsRange) {
  EXPECT_EQ(NegativeLog2(0), uint64_t{1} << 56);
  EXPECT_GT(NegativeLog2(~uint64_t{0}), 0u);
  uint64_t previous = NegativeLog2(0);
  for (uint64_t i = 1; i < 100'000; ++i) {
    uint64_t log = NegativeLog2(i * (std::numeric_limits<uint64_t>::max() / 100'000));
    ASSERT_LE(log, previous) << i;
    previous = log;
  }
}

TEST(MakeContender, BringsWeightsIntoRange) {
  struct Case {
    double weight;
    uint64_t handicap;
  };
  const double infinity = std::numeric_limits<double>::infinity();
  const Case cases[] = {{1.0, 1 << 20},   {2.0, 1 << 19},      {0.5, 1 << 21},
                        {3.0, 349'525},   {0.0, 1 << 30},      {-1.0, 1 << 30},
                        {1e300, 1 << 10}, {infinity, 1 << 10}, {std::nan(""), 1 << 20}};
  for (const Case& c : cases) EXPECT_EQ(MakeContender("a", c.weight).handicap, c.handicap);
}

// What does not reach it costs more, what reaches it does not: ties are on the right side.
TEST(LeastHashWithin, IsTheExactLimit) {
  constexpr uint64_t kTop = ~uint64_t{0};
  for (double weight : {1.0 / 1024, 0.3, 1.0, 7.77, 1024.0}) {
    const uint64_t handicap = MakeContender("x", weight).handicap;
    for (uint64_t hash : {uint64_t{2}, kTop / 1'000, kTop / 2, kTop / 8 * 7, kTop - (1 << 20)}) {
      for (int slack : {-1, 0, 1}) {
        const uint64_t cost = std::max<uint64_t>(1, CostOfHash(handicap, hash));
        const uint64_t cost_max = cost + static_cast<uint64_t>(slack);
        const uint64_t least = LeastHashWithin(handicap, cost_max);
        EXPECT_LE(CostOfHash(handicap, least), cost_max) << weight << " " << hash;
        EXPECT_GT(CostOfHash(handicap, least - 1), cost_max) << weight << " " << hash;
      }
    }
    EXPECT_EQ(LeastHashWithin(handicap, kTop), 0u);
  }
}

TEST(ShareWithin, IsThePartOfTheHashesBeyondTheLimit) {
  for (double weight : {0.1, 1.0, 30.0}) {
    const Contender contender = MakeContender("x", weight);
    for (uint64_t cost_max : {uint64_t{1} << 38, uint64_t{1} << 43, uint64_t{1} << 48}) {
      const double least = static_cast<double>(LeastHashWithin(contender.handicap, cost_max));
      EXPECT_NEAR(ShareWithin(contender, cost_max), 1 - std::ldexp(least, -64), 1e-6);
    }
  }
}

TEST(CostOf, TheHeaviestHandicapDoesNotOverflow) {
  // A contender whose hash at point 0 is 0, the costliest there is.
  Contender worst{.seed = 0, .handicap = uint64_t{1} << 30};
  EXPECT_EQ(CostOf(worst, 0), uint64_t{1} << 63);
}

// Nodes of different versions must agree: these values may never change.
TEST(CostOf, IsPartOfTheProtocol) {
  struct Case {
    const char* name;
    double weight;
    uint64_t point;
    uint64_t cost;
  };
  const Case cases[] = {
      {"node-0000", 1.0, 0, 239'769'251'158'105},
      {"node-0000", 1.0, 65'535, 37'531'470'122'743},
      {"node-0001", 2.0, 4'711, 502'330'463'768'132},
      {"", 0.3, 1, 1'228'581'095'626'167},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(CostOf(MakeContender(c.name, c.weight), c.point), c.cost) << c.name << c.point;
  }
}

}  // namespace
}  // namespace mooncake::routing

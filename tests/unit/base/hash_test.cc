#include "base/hash.h"

#include <gtest/gtest.h>

namespace mooncake::base {
namespace {

// Nodes of different builds must agree, so the values are pinned.
TEST(Hash64, IsStableAcrossBuilds) {
  EXPECT_EQ(Hash64(""), 0x2d06800538d394c2ULL);
  EXPECT_EQ(Hash64("abc"), 0x78af5f94892f3950ULL);
}

TEST(Hash64, DependsOnTheSeed) { EXPECT_NE(Hash64("key", 1), Hash64("key", 2)); }

TEST(Mix64, IsStableAcrossBuilds) {
  EXPECT_EQ(Mix64(0), 0u);
  EXPECT_EQ(Mix64(0x9e3779b97f4a7c15ULL), 0xe220a8397b1dcdafULL);
}

}  // namespace
}  // namespace mooncake::base

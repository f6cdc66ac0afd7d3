#include "base/text.h"

#include <gtest/gtest.h>

#include "mooncake/config.h"

namespace mooncake {
namespace {

uint64_t Size(std::string_view text) {
  const Result<uint64_t> size = ParseSize("global_segment_size", text);
  EXPECT_TRUE(size.ok()) << text;
  return size.value_or(0);
}

TEST(ParseSize, ReadsUnitsOfAnyCaseAsPowersOf1024) {
  EXPECT_EQ(Size("0"), 0u);
  EXPECT_EQ(Size("4096"), 4096u);
  EXPECT_EQ(Size("7B"), 7u);
  for (std::string_view text : {"2k", "2K", "2KB", "2kb", "2KiB", "2kIb"}) {
    EXPECT_EQ(Size(text), 2048u) << text;
  }
  EXPECT_EQ(Size("512MB"), 512ULL << 20);
  EXPECT_EQ(Size("4gb"), 4ULL << 30);
  EXPECT_EQ(Size("3T"), 3ULL << 40);
}

TEST(ParseSize, AllowsSpacesAndDecimals) {
  EXPECT_EQ(Size(" 1.5 gib "), 3ULL << 29);
  EXPECT_EQ(Size("0.25K"), 256u);
  EXPECT_EQ(Size("1.000"), 1u);
  EXPECT_EQ(Size("0.9999999999999999999999999T"), (1ULL << 40) - 1);
}

TEST(ParseSize, IsExactUpToTheLargestNumber) {
  EXPECT_EQ(Size("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(Size("9007199254740993"), 9007199254740993ULL);
  EXPECT_EQ(Size("16777215T"), 16777215ULL << 40);
}

TEST(ParseSize, RefusesMalformedTextAndNamesIt) {
  for (std::string_view text :
       {"", " ", "GB", "-1", "+1", "1.", ".5G", "1.5", "1.5B", "1X", "1KK", "1iB", "1 K B", "1e3",
        "0x10", "18446744073709551616", "16777216T"}) {
    const Result<uint64_t> size = ParseSize("global_segment_size", text);
    ASSERT_EQ(size.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(size.error().context.find("global_segment_size: \"" + std::string(text)),
              std::string::npos);
  }
}

}  // namespace

namespace base {
namespace {

TEST(Text, LowersAndTrimsAscii) {
  EXPECT_EQ(Lower("MiXeD-9\xc3\x84"), "mixed-9\xc3\x84");
  EXPECT_EQ(Trim(" \t a b\t "), "a b");
  EXPECT_EQ(Trim(" \t"), "");
}

TEST(Text, SplitKeepsEmptyPieces) {
  EXPECT_EQ(Split("a,,b", ','), (std::vector<std::string_view>{"a", "", "b"}));
  EXPECT_EQ(Split("", ','), (std::vector<std::string_view>{""}));
}

TEST(Text, ParseUintTakesAllOfTheTextOrNothing) {
  EXPECT_EQ(ParseUint("42"), 42u);
  EXPECT_EQ(ParseUint("42", 41), std::nullopt);
  for (std::string_view text : {"", " 4", "4 ", "-4", "4x", "99999999999999999999"}) {
    EXPECT_EQ(ParseUint(text), std::nullopt) << text;
  }
}

TEST(Text, EditDistanceCountsSingleCharacterEdits) {
  EXPECT_EQ(EditDistance("", "abc"), 3u);
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3u);
  EXPECT_EQ(EditDistance("same", "same"), 0u);
}

TEST(Text, StrCatJoinsTextAndNumbers) {
  EXPECT_EQ(StrCat("a", 1, std::string("b"), uint16_t{2}, -3), "a1b2-3");
}

TEST(IsUtf8, KnowsEveryFormThatIsNot) {
  for (const char* text : {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf", "\xee\x80\x80",
                           "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", "a\xc2\x80z"}) {
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
  for (const char* text :
       {"\x80", "\xbf", "\xc0\xaf", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x9f\xbf", "\xe2\x82",
        "\xe2(\xa1", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf0\x90\x80", "\xf0\x90\x80(",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "ok\xfe"}) {
    EXPECT_FALSE(IsUtf8(text)) << text;
  }
  EXPECT_TRUE(IsUtf8(std::string_view("\0x", 2)));
}

}  // namespace
}  // namespace base
}  // namespace mooncake

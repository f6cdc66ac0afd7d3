#include "mooncake/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace mooncake {
namespace {

Result<int> Half(int n) {
  if (n % 2 != 0) return InvalidArgument("n is odd");
  return n / 2;
}

Result<int> Quarter(int n) {
  MC_TRY(const int half, Half(n));
  MC_TRY(const int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int n) {
  MC_RETURN_IF_ERROR(Quarter(n));
  return Ok();
}

TEST(Result, HoldsAValueOrAnError) {
  EXPECT_EQ(*Half(4), 2);
  EXPECT_EQ(Half(4).code(), ErrorCode::kOk);
  EXPECT_FALSE(Half(3));
  EXPECT_EQ(Half(3).error().ToString(), "InvalidArgument: n is odd");
  EXPECT_EQ(Half(3).value_or(7), 7);
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(6).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(6).code(), ErrorCode::kInvalidArgument);
}

TEST(Result, MovesValuesThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(5);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 5);
}

TEST(Error, NamesEveryCodeAndSurvivesAnUnknownOne) {
  EXPECT_EQ(ErrorName(ErrorCode::kOk), "Ok");
  EXPECT_EQ(ErrorName(ErrorCode::kNoSpace), "NoSpace");
  EXPECT_EQ(ErrorName(static_cast<ErrorCode>(-999)), "Unknown");
  EXPECT_EQ(StaleEpoch("").ToString(), "StaleEpoch");
}

TEST(Error, MakersSetTheCodeThatTheyName) {
  EXPECT_EQ(NotFound("").code, ErrorCode::kNotFound);
  EXPECT_EQ(InvalidState("").code, ErrorCode::kInvalidState);
  EXPECT_EQ(MetadataError("").code, ErrorCode::kMetadata);
  EXPECT_EQ(TransportError("").code, ErrorCode::kTransport);
  EXPECT_EQ(Conflict("").code, ErrorCode::kConflict);
  EXPECT_EQ(StaleEpoch("").code, ErrorCode::kStaleEpoch);
  EXPECT_EQ(Unsupported("").code, ErrorCode::kUnsupported);
  EXPECT_EQ(BackPressure("").code, ErrorCode::kBackPressure);
  EXPECT_EQ(ChecksumMismatch("").code, ErrorCode::kChecksum);
  EXPECT_EQ(TooSmall("").code, ErrorCode::kTooSmall);
  EXPECT_EQ(InvalidArgument("").code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(NoSpace("").code, ErrorCode::kNoSpace);
}

}  // namespace
}  // namespace mooncake

#include "daemon/flags.h"

#include <gtest/gtest.h>

namespace mooncake::daemon {
namespace {

TEST(DaemonFlags, AConfigThatIsAFolderIsRefused) {
  const auto command =
      ParseCommandLine({"run", "--config", ::testing::TempDir(), "--local-hostname=h"}, {});
  ASSERT_EQ(command.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(command.error().context.find("cannot be read"), std::string::npos);
}

}  // namespace
}  // namespace mooncake::daemon

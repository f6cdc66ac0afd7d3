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

TEST(DaemonFlags, ALeaseThatIsTooLongIsNamed) {
  const auto command = ParseCommandLine(
      {"run", "--local-hostname=h", "--metadata-url=memory://m", "--lease-ttl-ms=604800001"}, {});
  ASSERT_EQ(command.code(), ErrorCode::kInvalidArgument);
  EXPECT_NE(command.error().context.find(
                "lease_ttl_ms is \"604800001\"; allowed: an integer from 1 to 604800000"),
            std::string::npos)
      << command.error().context;
}

TEST(DaemonFlags, PrintedSettingsKeepEveryPassword) {
  const auto command = ParseCommandLine(
      {"run", "--print-config", "--local-hostname=h", "--metadata-url=redis://u:secret@h",
       "--transport-metadata-url=redis://u:secret@h:1/0", "--cluster-secret=secret"},
      {});
  ASSERT_TRUE(command.ok()) << command.error().context;
  EXPECT_EQ(command->text.find(":secret"), std::string::npos) << command->text;
  EXPECT_NE(command->text.find("transport_metadata_url = redis://u:***@h:1/0"), std::string::npos)
      << command->text;
}

}  // namespace
}  // namespace mooncake::daemon

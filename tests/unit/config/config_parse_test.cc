#include "client/config/config_parse.h"

#include <filesystem>
#include <fstream>

namespace mooncake::client_config {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

TEST(ConfigParse, BooleansHaveManySpellings) {
  for (std::string_view yes : {"1", "true", "True", " YES ", "on", "y", "t"}) {
    EXPECT_TRUE(ParseBool("f", yes).value_or(false)) << yes;
  }
  for (std::string_view no : {"0", "false", "No", "OFF", "n", "f"}) {
    EXPECT_FALSE(ParseBool("f", no).value_or(true)) << no;
  }
}

TEST(ConfigParse, ErrorsNameFieldTextAndWhatIsAllowed) {
  const Result<bool> flag = ParseBool("use_hugepage", "maybe");
  ASSERT_FALSE(flag);
  EXPECT_EQ(flag.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(flag.error().context,
              AllOf(HasSubstr("use_hugepage"), HasSubstr("maybe"), HasSubstr("true or false")));
}

TEST(ConfigParse, IntegersStayInTheirRange) {
  EXPECT_EQ(ParseInteger("f", " 7 ", 1, 10).value_or(0), 7U);
  for (std::string_view bad :
       {"", "-1", "+1", "0", "11", "1.5", "0x5", "5 5", "18446744073709551616"}) {
    EXPECT_EQ(ParseInteger("f", bad, 1, 10).code(), ErrorCode::kInvalidArgument) << bad;
  }
}

TEST(ConfigParse, ASecretIsASmallFileWithoutTheSpaceAroundIt) {
  const std::string path = testing::TempDir() + "config-parse-secret";
  std::ofstream(path) << " se cret\n\n";
  EXPECT_EQ(ReadSecret("f", path, "secret").value_or(""), "se cret");
  std::ofstream(path) << "\n";
  EXPECT_EQ(ReadSecret("f", path, "secret").code(), ErrorCode::kInvalidArgument);
  std::filesystem::remove(path);
}

TEST(ConfigParse, AFileWithoutAnEndIsNoSecret) {
  for (const char* path : {"/dev/zero", "/dev/urandom", "/dev/null", "/", "/no/such"}) {
    const Result<std::string> secret = ReadSecret("some_file", path, "token");
    ASSERT_EQ(secret.code(), ErrorCode::kInvalidArgument) << path;
    EXPECT_THAT(secret.error().context,
                AllOf(HasSubstr("some_file"), HasSubstr(path), HasSubstr("with the token")));
  }
}

TEST(ConfigParse, HugepagesAreOfTwoSizes) {
  for (std::string_view text : {"2M", "2mb", "2097152"}) {
    EXPECT_EQ(ParseHugepageSize("f", text).value_or(0), 2U << 20) << text;
  }
  for (std::string_view text : {"1G", "1gb", "1073741824"}) {
    EXPECT_EQ(ParseHugepageSize("f", text).value_or(0), 1U << 30) << text;
  }
  const Result<uint64_t> bad = ParseHugepageSize("f", "3MB");
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().context, AllOf(HasSubstr("3MB"), HasSubstr("2MB or 1GB")));
}

TEST(ConfigParse, ChoicesTakeAnySpellingOfTheirGroup) {
  constexpr std::string_view kChoices = "embedded_wrh|wrh metadata_only|metadata";
  EXPECT_EQ(ParseChoice("f", " Embedded-WRH ", kChoices).value_or(""), "embedded_wrh");
  EXPECT_EQ(ParseChoice("f", "metadata", kChoices).value_or(""), "metadata_only");
  const auto bad = ParseChoice("f", "etcd", kChoices);
  ASSERT_FALSE(bad);
  EXPECT_THAT(bad.error().context, HasSubstr("embedded_wrh, metadata_only"));
}

TEST(ConfigParse, LabelsAreJsonOrPairs) {
  EXPECT_THAT(*ParseLabels("f", R"({"pool": "a,b", "n": 3, "storage": true})"),
              ElementsAre(Pair("n", "3"), Pair("pool", "a,b"), Pair("storage", "true")));
  EXPECT_THAT(*ParseLabels("f", " pool = a , x=,route_scope=r=1,"),
              ElementsAre(Pair("pool", "a"), Pair("route_scope", "r=1"), Pair("x", "")));
  for (std::string_view bad : {"pool", "=a", "{", "{\"a\": [1]}", "{\"a\": null}", "a=1,b"}) {
    EXPECT_EQ(ParseLabels("f", bad).code(), ErrorCode::kInvalidArgument) << bad;
  }
}

}  // namespace
}  // namespace mooncake::client_config

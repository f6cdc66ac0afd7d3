#include <gtest/gtest.h>

#include "base/hostport.h"
#include "base/url.h"

namespace mooncake::base {
namespace {

HostPort Address(std::string_view text) {
  Result<HostPort> result = ParseHostPort("local_hostname", text);
  EXPECT_TRUE(result.ok()) << text;
  return result.value_or({});
}

Url UrlOf(std::string_view text) {
  Result<Url> result = ParseUrl("metadata_url", text);
  EXPECT_TRUE(result.ok()) << text;
  return result.value_or({});
}

TEST(HostPort, ReadsEveryForm) {
  EXPECT_EQ(Address("node1"), (HostPort{"node1", std::nullopt}));
  EXPECT_EQ(Address("node1:80"), (HostPort{"node1", 80}));
  EXPECT_EQ(Address("10.0.0.1:0"), (HostPort{"10.0.0.1", 0}));
  EXPECT_EQ(Address("[fe80::1]:9000"), (HostPort{"fe80::1", 9000}));
  EXPECT_EQ(Address("[fe80::1]"), (HostPort{"fe80::1", std::nullopt}));
}

TEST(HostPort, TakesManyBareColonsForAHost) {
  EXPECT_EQ(Address("fe80::1"), (HostPort{"fe80::1", std::nullopt}));
}

TEST(HostPort, WritesWhatItReads) {
  for (std::string_view text : {"node1", "node1:80", "[fe80::1]:9000", "fe80::1"}) {
    EXPECT_EQ(Address(text).ToString(), text);
  }
}

TEST(HostPort, RefusesMalformedTextAndNamesIt) {
  for (std::string_view text : {"", ":80", "a:", "a:x", "a:65536", "a:-1", "[::1", "[::1]80",
                                "[]:1", "a b", "a/b:1", "[a:1]", "[a:1]:2"}) {
    const Result<HostPort> result = ParseHostPort("local_hostname", text);
    ASSERT_EQ(result.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(result.error().context.find("local_hostname"), std::string::npos) << text;
    EXPECT_NE(result.error().context.find(text), std::string::npos) << text;
  }
}

TEST(Url, ReadsTheMetadataUrls) {
  EXPECT_EQ(UrlOf("memory://test-1").host, "test-1");
  const Url sqlite = UrlOf("sqlite:///var/lib/cluster.db");
  EXPECT_EQ(sqlite.scheme, "sqlite");
  EXPECT_EQ(sqlite.host, "");
  EXPECT_EQ(sqlite.path, "/var/lib/cluster.db");
  const Url redis = UrlOf("REDIS://me:pw@redis.local:6379/2?x=1");
  EXPECT_EQ(redis.scheme, "redis");
  EXPECT_EQ(redis.user, "me");
  EXPECT_EQ(redis.password, "pw");
  EXPECT_EQ(redis.host, "redis.local");
  EXPECT_EQ(redis.port, 6379);
  EXPECT_EQ(redis.path, "/2");
  EXPECT_EQ(redis.query, "x=1");
}

TEST(Url, ReadsIpv6AndListsOfHosts) {
  const Url v6 = UrlOf("redis://[::1]:6379");
  EXPECT_EQ(v6.host, "::1");
  EXPECT_EQ(v6.port, 6379);
  EXPECT_EQ(UrlOf("etcd://a:1,b:2").host, "a:1,b:2");
}

TEST(Url, DecodesCredentials) {
  const Url url = UrlOf("redis://u%40x:p%2F%3a%25@h");
  EXPECT_EQ(url.user, "u@x");
  EXPECT_EQ(url.password, "p/:%");
  EXPECT_EQ(UrlOf("redis://:secret@h").password, "secret");
  EXPECT_EQ(UrlOf("redis://user@h").password, "");
  EXPECT_EQ(UrlOf("redis://u:a@b@h").password, "a@b");
}

TEST(Url, RedactedHidesOnlyThePassword) {
  EXPECT_EQ(UrlOf("redis://me:pw@h:1/0").Redacted(), "redis://me:***@h:1/0");
  EXPECT_EQ(UrlOf("redis://:pw@[::1]:1").Redacted(), "redis://:***@[::1]:1");
  EXPECT_EQ(UrlOf("sqlite:///a.db").Redacted(), "sqlite:///a.db");
  EXPECT_EQ(RedactUrl("redis://me:p@w@h:x"), "redis://me:***@h:x");
  EXPECT_EQ(RedactUrl("me:pw@h"), "me:***@h");
}

TEST(Url, ErrorsNameTheValueButNotThePassword) {
  for (std::string_view text : {"redis:/me:secret@h", "redis://me:secret%2@h",
                                "redis://me:secret@h:99999", "1x://me:secret@h"}) {
    const Result<Url> result = ParseUrl("metadata_url", text);
    ASSERT_EQ(result.code(), ErrorCode::kInvalidArgument) << text;
    EXPECT_NE(result.error().context.find("metadata_url"), std::string::npos) << text;
    EXPECT_EQ(result.error().context.find("secret"), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace mooncake::base

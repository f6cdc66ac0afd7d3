// Who may speak with etcd: users, passwords, certificates.
#include <gmock/gmock.h>

#include "etcd_world.h"
#include "support/scripted_grpc.h"
#include "support/tls_files.h"

namespace mooncake::testing {
namespace {

using metadata::EtcdMetadata;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using EtcdAccessTest = EtcdMetadataTest;

TEST_F(EtcdAccessTest, ThePasswordIsInNoMessage) {
  for (const char* broken :
       {"etcd://u:secret%4@h", "etcd://u:secret@", "etcd://u:secret@h:x", "etcd://u:secret@h:0",
        "etcd://u:secret@[::1", "etcd://u:secret@a:1,,b:1", "etcd://u:secret@h?x=1",
        "etcd://u:secret@h?tls=no", "etcd://u:secret@h?tls_ca=/no/file", "http://u:secret@h"}) {
    auto store = EtcdMetadata::Open(broken, {}, runtime_);
    ASSERT_EQ(store.code(), ErrorCode::kInvalidArgument) << broken;
    EXPECT_THAT(store.error().context, Not(HasSubstr("secret"))) << broken;
  }
  const std::string at = "@127.0.0.1:" + std::to_string(server_.port());
  Result<uint64_t> refused = Connect("etcd://root:s%40cret" + at, runtime_)->Poll();
  ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
  EXPECT_THAT(refused.error().context,
              AllOf(HasSubstr("refused the user and password"), Not(HasSubstr("cret"))));
}

TEST_F(EtcdAccessTest, TellsWrongCredentialsFromAServerThatLags) {
  EtcdFixture server(runtime_);
  EnableUser(server, "pass");
  const std::string at = "@127.0.0.1:" + std::to_string(server.port());
  auto store = Connect("etcd://root:wrong" + at, runtime_);
  EXPECT_FALSE(store->Poll().ok());
  EXPECT_TRUE(store->Denies());
  auto right = Connect("etcd://root:pass" + at, runtime_);
  EXPECT_TRUE(right->Poll().ok());
  EXPECT_FALSE(right->Denies());
  ScriptedGrpc lagging([](const ScriptedGrpc::Call&) {
    return ScriptedGrpc::Reply{.code = 8, .refusal = "too many"};
  });
  auto later = Connect("etcd://root:pass@" + lagging.Address(), runtime_);
  EXPECT_FALSE(later->Poll().ok());
  EXPECT_FALSE(later->Denies());
}

TEST_F(EtcdAccessTest, UsersAreLoggedInAndAgainAfterARestart) {
  EtcdFixture server(runtime_);
  // p@ss:w/rd %41"'\{}?#&=
  const std::string escaped = "p%40ss%3Aw%2Frd%20%2541%22%27%5C%7B%7D%3F%23%26%3D";
  const std::string at = "@127.0.0.1:" + std::to_string(server.port());
  EnableUser(server, R"(p@ss:w/rd %41\"'\\{}?#&=)");
  auto store = Connect("etcd://root:" + escaped + at, runtime_);
  const LeaseRecord record = Acquired(*store, "n", kLongMs);
  server.Stop();
  ASSERT_TRUE(server.Start());
  Result<RenewResult> renewed = store->Renew(record, kLongMs);
  ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
  for (const std::string& url : {server.Url(), "etcd://root:wrong" + at}) {
    Result<uint64_t> refused = Connect(url, runtime_)->Poll();
    ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
    EXPECT_THAT(refused.error().context, AllOf(HasSubstr("user"), Not(HasSubstr("wrong"))));
  }
}

TEST_F(EtcdAccessTest, BothSidesProveThemselvesByTls) {
  TlsFiles files;
  EtcdFixture server(runtime_, {files.ca(), files.server(), files.server()});
  const std::string trust = server.Url() + "?tls_ca=" + files.ca();
  const std::string client = "&tls_cert=" + files.client();
  auto store = Connect(trust + client, runtime_);
  Acquired(*store, "n", kLongMs);
  for (const std::string& url :
       {trust, server.Url(), server.Url() + "?tls=true" + client,
        server.Url() + "?tls_ca=" + files.other_ca() + client, trust + client + "&tls_name=x"}) {
    EXPECT_EQ(Connect(url, runtime_)->Poll().code(), ErrorCode::kMetadata) << url;
  }
}

TEST_F(EtcdAccessTest, ACertificateNamesItsUser) {
  TlsFiles files;
  EtcdFixture server(runtime_, {files.ca(), files.server(), files.server()});
  server.Command("/v3/auth/role/add", R"({"name": "root"})");
  server.Command("/v3/auth/user/add", R"({"name": "the-client", "password": "unused"})");
  server.Command("/v3/auth/user/grant", R"({"user": "the-client", "role": "root"})");
  EnableUser(server, "pass");
  const std::string url = server.Url() + "?tls_ca=" + files.ca() + "&tls_cert=";
  Acquired(*Connect(url + files.client(), runtime_), "n", kLongMs);
  Result<uint64_t> stranger = Connect(url + files.server(), runtime_)->Poll();
  ASSERT_EQ(stranger.code(), ErrorCode::kMetadata);
  EXPECT_THAT(stranger.error().context, HasSubstr("permission denied"));
}

TEST_F(EtcdAccessTest, AServerThatWantsTlsIsHintedAt) {
  TlsFiles files;
  EtcdFixture server(runtime_, {files.ca(), files.server(), files.server()});
  Result<uint64_t> plain = Connect(server.Url(), runtime_)->Poll();
  ASSERT_EQ(plain.code(), ErrorCode::kMetadata);
  EXPECT_THAT(plain.error().context, AllOf(HasSubstr(server.Url()), HasSubstr("want TLS")));
}

}  // namespace
}  // namespace mooncake::testing

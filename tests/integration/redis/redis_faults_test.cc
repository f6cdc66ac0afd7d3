// TLS, and a server that answers but refuses.
#include <gmock/gmock.h>

#include <thread>

#include "metadata/redis/redis_metadata.h"
#include "runtime/real_runtime.h"
#include "support/leases.h"
#include "support/redis_fixture.h"
#include "support/tls_files.h"

namespace mooncake::testing {
namespace {

using metadata::RedisMetadata;
using metadata::RedisOptions;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kLongMs = 600'000;
// A password that breaks URLs, protocols and logs that are careless.
constexpr const char* kPassword = "p@ss:w/rd %41\"'\\{}?#&=\xc3\xbc";

class RedisFaultsTest : public ::testing::Test {
 protected:
  std::unique_ptr<MetadataStore> Connect(const std::string& url) {
    auto store = RedisMetadata::Open(
        url, {.keyspace = "ks", .timeouts = {.connect_ms = 2'000, .io_ms = 2'000}}, runtime_);
    EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
    return *std::move(store);
  }
  // The error of a change, which is kMetadata and quick.
  std::string Refusal(MetadataStore& store) {
    const uint64_t start_ms = runtime_.NowMs();
    Result<NodeId> refused = store.Acquire(Named("n"), kLongMs, std::nullopt, false);
    EXPECT_LT(runtime_.NowMs() - start_ms, 3'500u);
    EXPECT_EQ(refused.code(), ErrorCode::kMetadata);
    return refused.ok() ? "" : refused.error().context;
  }

  runtime::RealRuntime runtime_;
};

class RedisTlsTest : public RedisFaultsTest {
 protected:
  std::string Url(const std::string& query, const std::string& credentials = "u%40s:") {
    return "rediss://" + credentials + PercentEncode(kPassword) +
           "@127.0.0.1:" + std::to_string(port_) + "/3?" + query;
  }
  std::string Trusting(const std::string& ca) { return "tls_ca=" + PercentEncode(ca); }
  std::string AsClient() { return "&tls_cert=" + PercentEncode(files_.client()); }

  const TlsFiles files_;
  const uint16_t port_ = FreePort();
  RedisFixture server_{runtime_,
                       kPassword,
                       {"--tls-port", std::to_string(port_), "--tls-cert-file", files_.server(),
                        "--tls-key-file", files_.server(), "--tls-ca-cert-file", files_.ca()}};
};

TEST_F(RedisTlsTest, BothSidesProveThemselvesAndTheRestOfTheUrlCountsToo) {
  server_.Command({"ACL", "SETUSER", "u@s", "on", std::string(">") + kPassword, "~*", "+@all"});
  auto store = Connect(Url(Trusting(files_.ca()) + AsClient()));
  Result<NodeId> id = store->Acquire(Named("n"), kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  EXPECT_EQ(server_.Command({"HKEYS", "{ks}/leases"}, 3), "n:1");
  for (int i = 0; i < 20; ++i) {
    server_.CutConnections();
    Result<uint64_t> revision = store->Poll();
    EXPECT_TRUE(revision.ok()) << revision.error().ToString();
  }
  // More than one record of TLS.
  const std::string text(1 << 20, 'x');
  ASSERT_TRUE(store->PutDocument("d", text, 0).ok());
  EXPECT_EQ(store->GetDocument("d").value_or({}).text, text);
}

TEST_F(RedisTlsTest, AServerThatCannotProveItselfIsRefusedWithoutAWordOfThePassword) {
  const auto refusal = [&](const std::string& url) {
    Result<uint64_t> refused = Connect(url)->Poll();
    EXPECT_EQ(refused.code(), ErrorCode::kMetadata);
    const std::string text = refused.ok() ? "" : refused.error().context;
    EXPECT_THAT(text, AllOf(HasSubstr("rediss://127.0.0.1"), Not(HasSubstr("p@ss")),
                            Not(HasSubstr("p%40ss"))));
    return text;
  };
  EXPECT_THAT(refusal(Url(Trusting(files_.other_ca()) + AsClient())), HasSubstr("certificate"));
  EXPECT_THAT(refusal(Url(AsClient().substr(1))), HasSubstr("certificate"));
  EXPECT_THAT(refusal(Url(Trusting(files_.ca()) + AsClient() + "&tls_name=other")),
              HasSubstr("mismatch"));
  auto named = Connect(Url(Trusting(files_.ca()) + AsClient() + "&tls_name=the-server", ":"));
  EXPECT_TRUE(named->Poll().ok());
}

TEST_F(RedisTlsTest, AClientThatCannotProveItselfIsRefusedInTime) {
  const std::string refusal = Refusal(*Connect(Url(Trusting(files_.ca()), ":")));
  EXPECT_THAT(refusal, AnyOf(HasSubstr("TLS"), HasSubstr("closed"), HasSubstr("broke")));
}

TEST_F(RedisTlsTest, TlsToAPlainPortAndPlainToATlsPortEndInTime) {
  const std::string plain = "@127.0.0.1:" + std::to_string(server_.port());
  // It takes the greeting of TLS for half a command, and waits for the rest.
  EXPECT_THAT(Refusal(*Connect("rediss://:x" + plain + "?" + Trusting(files_.ca()))),
              HasSubstr("no answer"));
  EXPECT_NE(Refusal(*Connect("redis://127.0.0.1:" + std::to_string(port_))), "");
}

TEST_F(RedisTlsTest, AFileThatIsOfNoUseIsNamedAtOnce) {
  const auto refused = [&](const std::string& query) {
    auto store = RedisMetadata::Open("rediss://h?" + query, {}, runtime_);
    EXPECT_EQ(store.code(), ErrorCode::kInvalidArgument) << query;
    return store.ok() ? "" : store.error().context;
  };
  EXPECT_THAT(refused("tls_ca=/no/such.pem"),
              HasSubstr("tls_ca '/no/such.pem' cannot be used: No such file"));
  EXPECT_THAT(refused("tls_cert=/no/such.pem"), HasSubstr("tls_cert '/no/such.pem'"));
  EXPECT_THAT(refused(AsClient().substr(1) + "&tls_key=" + files_.server()), HasSubstr("tls_key"));
  EXPECT_THAT(refused("tls_key=" + files_.client()), HasSubstr("tls_key needs tls_cert"));
  EXPECT_THAT(refused("ca=x"), AllOf(HasSubstr("'ca'"), HasSubstr("tls_ca=FILE")));
}

TEST_F(RedisFaultsTest, AFullServerIsNamedAndTheCallWorksOnceItHasRoom) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url());
  server.Command({"CONFIG", "SET", "maxmemory", "1"});
  EXPECT_THAT(Refusal(*store), HasSubstr("OOM"));
  server.Command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
}

// Where there is no memory, Redis refuses what writes, but not what erases.
TEST_F(RedisFaultsTest, AFullServerEndsNoLeaseByHalves) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url());
  LeaseRecord lease = Named("n");
  Result<NodeId> id = store->Acquire(lease, 50, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  lease.id = *id;
  server.Command({"CONFIG", "SET", "maxmemory", "1"});
  runtime_.SleepMs(100);
  EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata);
  EXPECT_EQ(store->ReadChanges(0).code(), ErrorCode::kMetadata);
  for (const char* table : {"{ks}/leases", "{ks}/tokens"}) {
    EXPECT_EQ(server.Command({"HLEN", table}), "1") << table;
  }
  EXPECT_EQ(server.Command({"ZCARD", "{ks}/expiry"}), "1");
  server.Command({"CONFIG", "SET", "maxmemory", "0"});
  EXPECT_TRUE(store->Renew(lease, kLongMs).ok());
  EXPECT_EQ(store->ReadChanges(0).value_or({}).leases.size(), 1u);
}

TEST_F(RedisFaultsTest, AServerThatCannotSaveIsNamedAndTheCallWorksOnceItCan) {
  // Saving goes to a folder that vanishes, so that it fails for good.
  std::string pattern = (std::filesystem::temp_directory_path() / "mooncake-rdb-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  RedisFixture server(runtime_, "", {"--dir", folder, "--save", "3600 1"});
  std::filesystem::remove_all(folder);
  auto store = Connect(server.Url());
  server.Command({"SET", "changed", "1"});
  server.Command({"BGSAVE"});
  const uint64_t deadline_ms = runtime_.NowMs() + 10'000;
  const auto failed = [&] {
    return server.Command({"INFO", "persistence"}).find("bgsave_status:err") != std::string::npos;
  };
  while (!failed() && runtime_.NowMs() < deadline_ms) runtime_.SleepMs(10);
  EXPECT_THAT(Refusal(*store), HasSubstr("MISCONF"));
  server.Command({"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"});
  EXPECT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
}

TEST_F(RedisFaultsTest, AServerThatLoadsItsDataIsNamedAndTheCallWorksOnceItHas) {
  std::string pattern = (std::filesystem::temp_directory_path() / "mooncake-rdb-XXXXXX").string();
  const std::string folder = mkdtemp(pattern.data());
  RedisFixture server(runtime_, kPassword,
                      {"--dir", folder, "--enable-debug-command", "yes", "--key-load-delay", "2000",
                       "--loading-process-events-interval-bytes", "1024"});
  server.Command({"DEBUG", "POPULATE", "2000", "k", "100"});
  auto store = Connect(server.Url(3));
  // Saves, forgets everything and loads it again: two milliseconds a key.
  std::thread reload([&] { server.Command({"DEBUG", "RELOAD"}); });
  std::string seen;
  const uint64_t deadline_ms = runtime_.NowMs() + 10'000;
  while (seen.find("LOADING") == std::string::npos && runtime_.NowMs() < deadline_ms) {
    const Result<uint64_t> revision = store->Poll();
    if (!revision.ok()) seen += revision.error().context;
  }
  EXPECT_THAT(seen, HasSubstr("LOADING"));
  reload.join();
  while (!store->Poll().ok() && runtime_.NowMs() < deadline_ms) runtime_.SleepMs(20);
  EXPECT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
  std::filesystem::remove_all(folder);
}

TEST_F(RedisFaultsTest, AHungServerIsLeftWhenTheLimitOfTheFarewellSaysSo) {
  RedisFixture server(runtime_);
  auto store = RedisMetadata::Open(server.Url(), {.keyspace = "ks"}, runtime_).value();
  ASSERT_TRUE(store->Poll().ok());
  server.Pause();
  std::thread waiting([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata); });
  const uint64_t start_ms = runtime_.NowMs();
  store->EndBy(start_ms + 200);
  waiting.join();
  EXPECT_EQ(store->Release({"n", 1}, 0).code(), ErrorCode::kMetadata);
  EXPECT_LT(runtime_.NowMs() - start_ms, 1'500u);  // Not the 3 s that each would take.
  server.Resume();
  store->EndBy(runtime_.NowMs() + kLongMs);
  EXPECT_TRUE(store->Poll().ok());
}

}  // namespace
}  // namespace mooncake::testing

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>

#include "metadata/records.h"
#include "metadata/redis/redis_metadata.h"
#include "metadata/redis/redis_script.h"
#include "runtime/real_runtime.h"
#include "support/leases.h"
#include "support/redis_fixture.h"
#include "unit/metadata/contract.h"

namespace mooncake::testing {
namespace {

using metadata::RedisMetadata;
using metadata::RedisOptions;
using metadata::RedisTimeouts;
using runtime::RealRuntime;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kLongMs = 600'000;

std::unique_ptr<MetadataStore> Connect(const std::string& url, Runtime& runtime,
                                       RedisOptions options = {.keyspace = "ks"}) {
  auto store = RedisMetadata::Open(url, options, runtime);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return *std::move(store);
}

// One server for the whole suite, emptied for every test.
class RedisWorld final : public MetadataWorld {
 public:
  RedisWorld() { Server().Flush(); }
  std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) override {
    return testing::Connect(Server().Url(), Clock(), {.keyspace = keyspace});
  }
  void Pass(uint64_t ms) override { Clock().SleepMs(ms); }
  void Forget() override { Server().Flush(); }

 private:
  static RealRuntime& Clock() {
    static RealRuntime runtime;
    return runtime;
  }
  static RedisFixture& Server() {
    static RedisFixture server(Clock());
    return server;
  }
};

INSTANTIATE_TEST_SUITE_P(Redis, MetadataContract,
                         Worlds("redis", [] { return std::make_unique<RedisWorld>(); }));

// A password that breaks URLs, protocols and logs that are careless.
constexpr const char* kPassword = "p@ss:w/rd %41\"'\\{}?#&=\xc3\xbc";

class RedisMetadataTest : public ::testing::Test {
 protected:
  uint64_t ElapsedMs(const std::function<void()>& body) {
    return testing::ElapsedMs(runtime_, body);
  }
  std::unique_ptr<MetadataStore> Hasty(const RedisFixture& server) {
    return Connect(server.Url(3), runtime_,
                   {.keyspace = "ks", .timeouts = {.connect_ms = 300, .io_ms = 300}});
  }

  RealRuntime runtime_;
};

TEST_F(RedisMetadataTest, UsesThePasswordAndTheDatabaseOfTheUrl) {
  RedisFixture server(runtime_, kPassword);
  auto store = Connect(server.Url(3), runtime_);
  Result<NodeId> id = store->Acquire(Named("n"), kLongMs, std::nullopt, false);
  ASSERT_TRUE(id.ok()) << id.error().ToString();
  EXPECT_EQ(server.Command({"DBSIZE"}, 0), "0");
  EXPECT_NE(server.Command({"DBSIZE"}, 3), "0");
  EXPECT_EQ(server.Command({"HKEYS", "{ks}/leases"}, 3), "n:1");
}

// Which is all that the versions before look at.
TEST_F(RedisMetadataTest, AStandbyThatRepairsItsLeaseLeavesNoMarkUntilItIsActive) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  LeaseRecord record = Named("n");
  record.id.epoch = 2;
  record.beside = 1;
  ASSERT_TRUE(store->Renew(record, kLongMs).ok());
  EXPECT_EQ(server.Command({"HGET", "{ks}/epochs", "n"}), "0:2");
  record.state = NodeState::kActive;
  record.beside = 0;
  ASSERT_TRUE(store->Renew(record, kLongMs).ok());
  EXPECT_EQ(server.Command({"HGET", "{ks}/epochs", "n"}), "2:2");
}

TEST_F(RedisMetadataTest, CredentialsOfTheUrlWinOverThoseOfTheOptions) {
  RedisFixture server(runtime_, kPassword);
  const std::string bare = "redis://127.0.0.1:" + std::to_string(server.port());
  auto by_options = Connect(bare, runtime_, {.keyspace = "ks", .password = kPassword});
  EXPECT_TRUE(by_options->Poll().ok());
  auto by_url = Connect(server.Url(), runtime_, {.keyspace = "ks", .password = "wrong"});
  EXPECT_TRUE(by_url->Poll().ok());
  auto mixed = Connect("redis://default@" + bare.substr(8), runtime_,
                       {.keyspace = "ks", .username = "wrong", .password = kPassword});
  EXPECT_TRUE(mixed->Poll().ok());
}

TEST_F(RedisMetadataTest, UsersWorkAndAWrongUserIsNotLetInAsTheDefaultOne) {
  RedisFixture server(runtime_, kPassword);
  server.Command({"ACL", "SETUSER", "b:b", "on", ">pw", "~*", "+@all"});
  const std::string host = "@127.0.0.1:" + std::to_string(server.port());
  auto user = Connect("redis://b%3Ab:pw" + host, runtime_);
  EXPECT_TRUE(user->Poll().ok()) << user->Poll().error().ToString();
  auto wrong = Connect("redis://nobody:" + PercentEncode(kPassword) + host, runtime_);
  Result<uint64_t> refused = wrong->Poll();
  ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
  EXPECT_THAT(refused.error().context, HasSubstr("WRONGPASS"));
}

TEST_F(RedisMetadataTest, TellsWrongCredentialsFromAServerThatIsAway) {
  RedisFixture server(runtime_, kPassword);
  const std::string host = "127.0.0.1:" + std::to_string(server.port());
  const std::string right = ":" + PercentEncode(kPassword) + "@" + host;
  for (const std::string& url : {"redis://" + host,               // No password,
                                 "redis://:wrong@" + host,        // another one,
                                 "redis://nobody:wrong@" + host,  // another user,
                                 "redis://" + right + "/4711",    // a database that is not there,
                                 "redis://" + host + "/3"}) {
    auto store = Connect(url, runtime_);
    EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata) << url;
    EXPECT_TRUE(store->Denies()) << url;
  }
  auto store = Connect("redis://" + right, runtime_);
  EXPECT_TRUE(store->Poll().ok());
  EXPECT_FALSE(store->Denies());
  server.Command({"CLIENT", "KILL", "TYPE", "normal"});
  server.Command({"CONFIG", "SET", "requirepass", "another"});
  EXPECT_FALSE(store->Poll().ok());
  EXPECT_TRUE(store->Denies());
  auto away = Connect("redis://:wrong@127.0.0.1:1", runtime_);
  EXPECT_FALSE(away->Poll().ok());
  EXPECT_FALSE(away->Denies());
  // An open server that wants no password refuses one, too.
  RedisFixture open(runtime_);
  auto needless = Connect("redis://:wrong@127.0.0.1:" + std::to_string(open.port()), runtime_);
  EXPECT_FALSE(needless->Poll().ok());
  EXPECT_TRUE(needless->Denies());
}

TEST_F(RedisMetadataTest, ThePasswordIsInNoMessage) {
  RedisFixture server(runtime_, "right");
  const std::string odd = kPassword;
  const std::string host = "127.0.0.1:" + std::to_string(server.port());
  for (const std::string& url : {"redis://user:" + PercentEncode(odd) + "@" + host + "/3",
                                 "redis://:" + PercentEncode(odd) + "@" + host,
                                 "redis://:" + PercentEncode(odd) + "@127.0.0.1:1"}) {
    Result<uint64_t> refused = Connect(url, runtime_)->Poll();
    ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
    EXPECT_THAT(refused.error().context, AllOf(HasSubstr("127.0.0.1"), Not(HasSubstr("p@ss")),
                                               Not(HasSubstr("p%40ss")), Not(HasSubstr("user:"))));
  }
  // A server that does not know AUTH repeats its arguments.
  RedisFixture strange(runtime_, "", {"--rename-command", "AUTH", "HTUA"});
  const std::string url = "redis://:secret-word@127.0.0.1:" + std::to_string(strange.port());
  EXPECT_THAT(Connect(url, runtime_)->Poll().error().context, Not(HasSubstr("secret-word")));
  for (const char* broken :
       {"redis://u:secret%4@h", "redis://u:secret@", "redis://u:secret@h:x",
        "redis://u:secret@h:1/x", "redis://u:secret@h:0", "redis://u:secret@[::1",
        "redis://u:secret@h?tls_ca=x", "rediss://u:secret@h?tls=1",
        "rediss://u:secret@h?tls_ca=/no/file", "http://u:secret@h"}) {
    auto store = RedisMetadata::Open(broken, {}, runtime_);
    ASSERT_FALSE(store.ok()) << broken;
    EXPECT_THAT(store.error().context, Not(HasSubstr("secret"))) << broken;
  }
}

TEST_F(RedisMetadataTest, AMissingPasswordIsNamed) {
  RedisFixture server(runtime_, "pw");
  const std::string bare = "redis://127.0.0.1:" + std::to_string(server.port());
  Result<uint64_t> refused = Connect(bare, runtime_)->Poll();
  ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
  EXPECT_THAT(refused.error().context, HasSubstr("NOAUTH"));
}

TEST_F(RedisMetadataTest, AReadOnlyServerIsNamedAndLeftBehind) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Poll().ok());
  server.Command({"REPLICAOF", "127.0.0.1", "1"});
  Result<NodeId> refused = store->Acquire(Named("n"), kLongMs, std::nullopt, false);
  ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
  EXPECT_THAT(refused.error().context, HasSubstr("READONLY"));
  server.Command({"REPLICAOF", "NO", "ONE"});
  EXPECT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
}

TEST_F(RedisMetadataTest, CutConnectionsFailNoCallAndMissNoDatabase) {
  constexpr int kThreads = 8;
  RedisFixture server(runtime_, kPassword);
  auto store = Connect(server.Url(3), runtime_);
  std::atomic<int> running = kThreads;
  std::atomic<int> calls = 0;
  std::atomic<int> failed = 0;
  const auto check = [&](const auto& result) {
    ++calls;
    if (!result.ok() && ++failed < 5) ADD_FAILURE() << result.error().ToString();
    return result.ok();
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      LeaseRecord record = Named("t" + std::to_string(i));
      const std::string document = "d" + std::to_string(i);
      uint64_t version = 0;
      for (uint64_t round = 1; round <= 60; ++round) {
        Result<NodeId> id = store->Acquire(record, kLongMs, std::nullopt, false);
        if (!check(id)) continue;
        EXPECT_EQ(id->epoch, round);
        LeaseRecord renewed = record;
        renewed.id = *id;
        check(store->Renew(renewed, kLongMs));
        Result<uint64_t> put = store->PutDocument(document, std::to_string(round), version);
        if (check(put)) version = *put;
        check(store->ReadChanges(0));
        check(store->Release(*id, 0));
      }
      --running;
    });
  }
  // By progress, not by time: on a busy machine a connection may not live for one call.
  int cuts = 0;
  while (running > 0) {
    if (calls >= 16 * (cuts + 1)) {
      server.CutConnections();
      ++cuts;
    }
    runtime_.SleepMs(1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0) << "of " << calls << " calls with " << cuts << " cuts";
  EXPECT_GT(cuts, 20);
  EXPECT_EQ(server.Command({"DBSIZE"}, 0), "0");
  EXPECT_EQ(server.Command({"HLEN", "{ks}/documents"}, 3), "8");
}

TEST_F(RedisMetadataTest, AServerThatIsDownFailsAtOnceAndIsFoundAgain) {
  RedisFixture server(runtime_, kPassword);
  auto store = Hasty(server);
  ASSERT_TRUE(store->Poll().ok());
  server.Stop();
  const uint64_t took_ms = ElapsedMs([&] {
    Result<uint64_t> gone = store->Poll();
    ASSERT_EQ(gone.code(), ErrorCode::kMetadata);
    EXPECT_THAT(gone.error().context, HasSubstr("127.0.0.1:" + std::to_string(server.port())));
  });
  EXPECT_LT(took_ms, 600u);
  ASSERT_TRUE(server.Start());
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(RedisMetadataTest, AHungServerCostsTheTimeoutAndIsFoundAgain) {
  RedisFixture server(runtime_, kPassword);
  auto store = Hasty(server);
  ASSERT_TRUE(store->Poll().ok());
  server.Pause();
  for (int i = 0; i < 3; ++i) {
    const uint64_t took_ms =
        ElapsedMs([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata); });
    EXPECT_GE(took_ms, 300u);
    EXPECT_LT(took_ms, 1'500u);
  }
  server.Resume();
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(RedisMetadataTest, AServerThatRestartsEmptyIsRebuiltByItsClients) {
  RedisFixture server(runtime_, kPassword);
  auto store = Hasty(server);
  LeaseRecord a = Named("a");
  LeaseRecord b = Named("b");
  a.id = store->Acquire(a, kLongMs, std::nullopt, false).value_or(NodeId{});
  b.id = store->Acquire(b, kLongMs, std::nullopt, false).value_or(NodeId{});
  const uint64_t known = store->Poll().value_or(0);
  server.Stop();
  ASSERT_TRUE(server.Start());
  for (const LeaseRecord& record : {a, b}) {
    Result<RenewResult> renewed = store->Renew(record, kLongMs);
    ASSERT_TRUE(renewed.ok()) << renewed.error().ToString();
    EXPECT_TRUE(renewed->recreated);
    EXPECT_GT(renewed->revision, known);
  }
  const MembershipChanges changes = store->ReadChanges(known).value_or({});
  EXPECT_TRUE(changes.full);
  EXPECT_EQ(changes.leases.size(), 2u);
}

// What a call does whose answer was lost with the connection.
TEST_F(RedisMetadataTest, ARepeatedCallIsKnownByItsTokenAndCountsOnce) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  const auto twice = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"EVAL", metadata::kRedisScript, "1", "{ks}/"});
    const std::string first = server.Command(arguments);
    const uint64_t revision = store->Poll().value_or(0);
    EXPECT_EQ(server.Command(arguments), first);
    EXPECT_EQ(store->Poll().value_or(1), revision);
    return first;
  };
  const std::string core = metadata::EncodeLease(Named("n"))->core;
  const std::string ttl = std::to_string(kLongMs);
  EXPECT_EQ(twice({"acquire", "n", ttl, "token-1", "", "0", "", core}), "ok\n1");
  EXPECT_EQ(twice({"acquire", "n", ttl, "token-2", "1", "1", "", core}), "ok\n2");
  EXPECT_TRUE(store->ReportSuspect({"n", 2}).ok());
  EXPECT_THAT(twice({"renew", "n", ttl, "token-3", "2", "", core}), EndsWith("\ns"));
  server.Flush();
  EXPECT_THAT(twice({"renew", "n", ttl, "token-4", "2", "", core}), EndsWith("\nr"));
  const std::string put = twice({"put", "d", "0", "token-5", "text"});
  EXPECT_EQ(twice({"put", "d", put.substr(3), "token-6", ""}), "ok\n0");
}

// The script goes with the data, or alone.
TEST_F(RedisMetadataTest, AForgottenScriptIsSentAgain) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
  server.Command({"SCRIPT", "FLUSH"});
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(RedisMetadataTest, LapsedLeasesLeaveNoKeysBehind) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  const auto cycle = [&](int i) {
    const std::string name = "n" + std::to_string(i);
    ASSERT_TRUE(store->Acquire(Named(name), 1, std::nullopt, false).ok());
    runtime_.SleepMs(2);
    ASSERT_TRUE(store->Poll().ok());
  };
  cycle(0);
  const std::string keys = server.Command({"DBSIZE"});
  for (int i = 1; i <= 200; ++i) cycle(i);
  EXPECT_EQ(server.Command({"DBSIZE"}), keys);
  EXPECT_EQ(server.Command({"EXISTS", "{ks}/leases", "{ks}/tokens", "{ks}/expiry"}), "0");
}

TEST_F(RedisMetadataTest, EpochsAreForgottenSevenDaysAfterTheLastLease) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  for (const char* name : {"old", "recent", "live"}) {
    const auto id = store->Acquire(Named(name), kLongMs, std::nullopt, false);
    ASSERT_TRUE(id.ok()) << id.error().ToString();
    const bool ended = name != std::string("live");
    EXPECT_TRUE(!ended || store->Release(*id, 0).ok());
  }
  EXPECT_EQ(server.Command({"ZSCORE", "{ks}/seen", "live"}), "inf");
  const uint64_t week_ms = uint64_t{7} * 24 * 3600 * 1000;
  const uint64_t now_ms = runtime_.WallMs();
  server.Command({"ZADD", "{ks}/seen", std::to_string(now_ms - week_ms - 1000), "old"});
  server.Command({"ZADD", "{ks}/seen", std::to_string(now_ms - week_ms + 60'000), "recent"});
  const auto epoch = [&](const char* name) {
    return store->Acquire(Named(name), kLongMs, std::nullopt, false).value_or(NodeId{}).epoch;
  };
  EXPECT_EQ(epoch("old"), 1u);
  EXPECT_EQ(epoch("recent"), 2u);
}

TEST_F(RedisMetadataTest, APollIsOneSmallCommand) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
  ASSERT_TRUE(store->Poll().ok());
  constexpr uint64_t kPolls = 100;
  const uint64_t sent_before = server.Info("stats", "total_net_input_bytes");
  const uint64_t done_before = server.Info("stats", "total_commands_processed");
  for (uint64_t i = 0; i < kPolls; ++i) ASSERT_TRUE(store->Poll().ok());
  const uint64_t done = server.Info("stats", "total_commands_processed") - done_before;
  const uint64_t sent = server.Info("stats", "total_net_input_bytes") - sent_before;
  // One EVALSHA, and TIME and HMGET inside it; one INFO more.
  EXPECT_LE(done, 3 * kPolls + 5);
  EXPECT_LE(sent, 150 * kPolls + 1000);
  const std::string text = server.Command({"INFO", "commandstats"});
  EXPECT_THAT(text, HasSubstr("cmdstat_evalsha:calls=" + std::to_string(kPolls + 2) + ","));
}

TEST_F(RedisMetadataTest, ForeignBytesBlindNobody) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Acquire(Named("n"), kLongMs, std::nullopt, false).ok());
  for (const char* value : {"", "x", "0  ", "0  {}", "1 1,2 {\"stable_id\":3}", "\xff\xff"}) {
    server.Command({"HSET", "{ks}/leases", std::string("bad:") + std::to_string(*value), value});
  }
  server.Command({"HSET", "{ks}/leases", "no-epoch", "0  {}"});
  Result<MembershipChanges> changes = store->ReadChanges(0);
  ASSERT_TRUE(changes.ok()) << changes.error().ToString();
  EXPECT_EQ(changes->leases.size(), 1u);

  server.Command({"SET", "{ks}/system/route-policy/default", "{[["});
  EXPECT_EQ(store->PutRoutePolicyIfAbsent({}).code(), ErrorCode::kMetadata);
  server.Command({"DEL", "{ks}/meta"});
  server.Command({"SET", "{ks}/meta", "a string"});
  Result<uint64_t> wrong = store->Poll();
  ASSERT_EQ(wrong.code(), ErrorCode::kMetadata);
  EXPECT_THAT(wrong.error().context, HasSubstr("WRONGTYPE"));
}

TEST_F(RedisMetadataTest, AForkedChildIsRefusedAndHarmsNothing) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Poll().ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = store->Poll().code() == ErrorCode::kInvalidState;
    store.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(RedisMetadataTest, AnInterruptEndsAWait) {
  RedisFixture server(runtime_);
  auto store = Connect(server.Url(), runtime_);
  ASSERT_TRUE(store->Poll().ok());
  server.Pause();
  runtime_.SetInterruptCheck([] { return true; });
  const uint64_t took_ms =
      ElapsedMs([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kTransport); });
  EXPECT_LT(took_ms, 1'000u);
  server.Resume();
}

}  // namespace
}  // namespace mooncake::testing

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "etcd_world.h"
#include "mooncake/etcd.pb.h"
#include "support/lossy_proxy.h"
#include "support/scripted_grpc.h"

namespace mooncake::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(Etcd, MetadataContract,
                         Worlds("etcd", [] { return std::make_unique<EtcdWorld>(); }));

TEST_F(EtcdMetadataTest, ThePrefixOfTheUrlAndTheKeyspaceHoldEveryKey) {
  auto store = Connect(server_.Url() + "/a%20b/c/", runtime_);
  Acquired(*store, "n", kLongMs);
  ASSERT_TRUE(store->PutRoutePolicyIfAbsent({}).ok());
  EXPECT_EQ(server_.Keys("/a b/c/{ks}/"), 5u);
  EXPECT_EQ(server_.Keys(), 5u);
  EXPECT_EQ(Connect(server_.Url(), runtime_)->Poll().value_or(1), 0u);
}

TEST_F(EtcdMetadataTest, AServerThatIsDownFailsAtOnceAndIsFoundAgainWithItsData) {
  auto store = Hasty(server_.Url());
  const LeaseRecord record = Acquired(*store, "n", kLongMs);
  const uint64_t known = store->Poll().value_or(0);
  server_.Stop();
  const uint64_t took_ms = ElapsedMs([&] {
    Result<uint64_t> gone = store->Poll();
    ASSERT_EQ(gone.code(), ErrorCode::kMetadata);
    EXPECT_THAT(gone.error().context,
                HasSubstr("etcd://127.0.0.1:" + std::to_string(server_.port()) + ": cannot"));
  });
  EXPECT_LT(took_ms, 400u);
  ASSERT_TRUE(server_.Start());
  EXPECT_EQ(store->Poll().value_or(0), known);
  EXPECT_FALSE(store->Renew(record, kLongMs).value_or({.recreated = true}).recreated);
}

TEST_F(EtcdMetadataTest, AHungServerCostsTheTimeoutAndIsFoundAgain) {
  auto store = Hasty(server_.Url());
  ASSERT_TRUE(store->Poll().ok());
  server_.Pause();
  for (int i = 0; i < 3; ++i) {
    const uint64_t took_ms =
        ElapsedMs([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata); });
    EXPECT_GE(took_ms, 500u);
    EXPECT_LT(took_ms, 2'500u);
  }
  server_.Resume();
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(EtcdMetadataTest, LeasesThatLapsedWhileTheServerHungAreLeftToTheirOwnersForAWhile) {
  auto watcher = Hasty(server_.Url());
  auto owner = Hasty(server_.Url());
  const LeaseRecord renews = Acquired(*watcher, "renews", 1);
  Acquired(*watcher, "dead", 1);
  server_.Pause();
  EXPECT_EQ(watcher->Poll().code(), ErrorCode::kMetadata);
  EXPECT_EQ(owner->Poll().code(), ErrorCode::kMetadata);
  const uint64_t start_ms = runtime_.NowMs();
  server_.Resume();
  server_.AwaitLapses();
  const uint64_t known = watcher->Poll().value_or(0);
  const size_t members = Members(*watcher);
  const RenewResult renewed = owner->Renew(renews, kLongMs).value_or({.recreated = true});
  if (runtime_.NowMs() - start_ms > 1'000) GTEST_SKIP() << "the machine is too busy to tell";
  EXPECT_EQ(members, 2u);
  EXPECT_FALSE(renewed.recreated);
  const uint64_t deadline_ms = runtime_.NowMs() + 10'000;
  while (watcher->Poll().value_or(0) == known && runtime_.NowMs() < deadline_ms) {
    runtime_.SleepMs(20);
  }
  EXPECT_EQ(Members(*watcher), 1u);
}

TEST_F(EtcdMetadataTest, AServerThatRestartsEmptyIsRebuiltByItsClients) {
  auto store = Hasty(server_.Url());
  const LeaseRecord a = Acquired(*store, "a", kLongMs);
  const LeaseRecord b = Acquired(*store, "b", kLongMs);
  const uint64_t known = store->Poll().value_or(0);
  server_.Stop();
  server_.Wipe();
  ASSERT_TRUE(server_.Start());
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

TEST_F(EtcdMetadataTest, TheNextMemberIsAskedWhenOneIsGoneOrHangs) {
  EtcdFixture hung(runtime_);
  hung.Pause();
  const std::string live = "127.0.0.1:" + std::to_string(server_.port());
  const std::string gone = "etcd://127.0.0.1:1,";
  EXPECT_TRUE(Hasty(gone + live)->Poll().ok());
  auto store = Hasty(hung.Url() + "," + live);
  EXPECT_GE(ElapsedMs([&] { EXPECT_TRUE(store->Poll().ok()); }), 500u);
  EXPECT_LT(ElapsedMs([&] { EXPECT_TRUE(store->Poll().ok()); }), 400u);  // Remembered.
  hung.Resume();
}

TEST_F(EtcdMetadataTest, TheNextMemberIsAskedWhenOneHangsInTheLogin) {
  EtcdFixture hung(runtime_);
  hung.Pause();
  EtcdFixture live(runtime_);
  EnableUser(live, "pass");
  auto store = Hasty("etcd://root:pass@127.0.0.1:" + std::to_string(hung.port()) +
                     ",127.0.0.1:" + std::to_string(live.port()));
  EXPECT_GE(ElapsedMs([&] { EXPECT_TRUE(store->Poll().ok()); }), 500u);
  EXPECT_LT(ElapsedMs([&] { EXPECT_TRUE(store->Poll().ok()); }), 400u);  // Remembered.
  hung.Resume();
}

TEST_F(EtcdMetadataTest, TheNextMemberIsAskedWhenOneCannotAnswer) {
  std::atomic<int> asked = 0;
  using Reply = ScriptedGrpc::Reply;
  for (const Reply& reply :
       {Reply{.code = 14, .refusal = "no leader"}, Reply{.code = 4, .refusal = "timed out"},
        Reply{.http_status = "503", .content_type = "text/html"}}) {
    const std::string& refusal = reply.refusal;
    ScriptedGrpc away([&](const ScriptedGrpc::Call&) {
      ++asked;
      return reply;
    });
    EtcdFixture live(runtime_);
    EnableUser(live, "pass");
    const std::string members = away.Address() + ",127.0.0.1:" + std::to_string(live.port());
    asked = 0;
    EXPECT_TRUE(Hasty("etcd://root:pass@" + members)->Poll().ok()) << refusal;
    EXPECT_EQ(asked, 1) << refusal;
    Result<uint64_t> alone = Hasty("etcd://root:pass@" + away.Address())->Poll();
    ASSERT_EQ(alone.code(), ErrorCode::kMetadata);
    EXPECT_THAT(alone.error().context,
                AllOf(HasSubstr(away.Address()), Not(HasSubstr("user and password"))));
    asked = 0;
    EXPECT_TRUE(Hasty("etcd://" + away.Address() + ",127.0.0.1:" + std::to_string(server_.port()))
                    ->Poll()
                    .ok());
    EXPECT_EQ(asked, 1) << refusal;
  }
}

// Whichever answer of a change gets lost, it happens, and once.
TEST_F(EtcdMetadataTest, AChangeWhoseAnswerWasLostHappensOnce) {
  LossyProxy proxy(server_.port());
  const std::string url = "etcd://127.0.0.1:" + std::to_string(proxy.port());
  auto store = Connect(url, runtime_);
  auto other = Connect(server_.Url(), runtime_);
  uint64_t version = 0;
  for (int keep = 0; keep < 6; ++keep) {
    proxy.LoseAnswerAfter(keep);
    const LeaseRecord record = Acquired(*store, "n" + std::to_string(keep), kLongMs);
    EXPECT_EQ(record.id.epoch, 1u);
    proxy.LoseAnswerAfter(keep);
    ASSERT_TRUE(other->ReportSuspect(record.id).ok());
    EXPECT_TRUE(store->Renew(record, kLongMs).value_or({}).was_suspect);
    proxy.LoseAnswerAfter(keep);
    Result<uint64_t> put = store->PutDocument("d", "text", version);
    ASSERT_TRUE(put.ok()) << put.error().ToString();
    EXPECT_GT(*put, version);
    proxy.LoseAnswerAfter(keep);
    Result<uint64_t> erased = store->PutDocument("d", "", *put);
    ASSERT_TRUE(erased.ok()) << erased.error().ToString();
    version = 0;
  }
  EXPECT_GT(proxy.lost(), 12);
  EXPECT_EQ(Members(*other), 6u);
}

TEST_F(EtcdMetadataTest, CutConnectionsFailNoCall) {
  constexpr int kThreads = 4;
  LossyProxy proxy(server_.port());
  auto store = Connect("etcd://127.0.0.1:" + std::to_string(proxy.port()), runtime_);
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
      const LeaseRecord record = Named("t" + std::to_string(i));
      for (uint64_t round = 1; round <= 15; ++round) {
        Result<NodeId> id = store->Acquire(record, kLongMs, std::nullopt, false);
        if (!check(id)) continue;
        EXPECT_EQ(id->epoch, round);
        check(store->ReadChanges(0));
        check(store->Release(*id, 0));
      }
      --running;
    });
  }
  int cuts = 0;
  while (running > 0) {
    if (calls >= 10 * (cuts + 1)) {
      proxy.CutConnections();
      ++cuts;
    }
    runtime_.SleepMs(1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failed, 0) << "of " << calls << " calls with " << cuts << " cuts";
  EXPECT_GT(cuts, 5);
}

TEST_F(EtcdMetadataTest, EndedLeasesLeaveABoundedNumberOfKeysBehind) {
  auto store = Connect(server_.Url(), runtime_);
  LeaseRecord record = Named("n");
  for (int i = 0; i < 50; ++i) {
    Result<NodeId> id = store->Acquire(record, kLongMs, std::nullopt, false);
    ASSERT_TRUE(id.ok()) << id.error().ToString();
    ASSERT_TRUE(store->Release(*id, 0).ok());
  }
  EXPECT_EQ(server_.Keys("/{ks}/leases/") + server_.Keys("/{ks}/live/"), 0u);
  EXPECT_EQ(server_.Keys("/{ks}/epochs/"), 1u);
  EXPECT_EQ(server_.Keys("/{ks}/gone/"), 50u);
}

TEST_F(EtcdMetadataTest, OnlyTheLatestThousandEndsAreKept) {
  auto store = Connect(server_.Url(), runtime_);
  const LeaseRecord record = Acquired(*store, "n", kLongMs);
  for (int i = 0; i < 1'005; ++i) {
    server_.Put("/{ks}/gone/old:" + std::to_string(i), "nonce 1");
  }
  ASSERT_TRUE(store->Release(record.id, 0).ok());
  EXPECT_EQ(server_.Keys("/{ks}/gone/"), 1'000u);
  EXPECT_EQ(server_.Keys("/{ks}/gone/n:"), 1u);
}

TEST_F(EtcdMetadataTest, AHeartbeatThatChangesNothingLeavesNoHistory) {
  auto store = Connect(server_.Url(), runtime_);
  const LeaseRecord record = Acquired(*store, "n", kLongMs);
  const auto revision = [&] {
    const std::string text = server_.Command("/v3/kv/range", R"({"key": "eA=="})");
    return text.substr(text.find("\"revision\""), 30);
  };
  const std::string before = revision();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(store->Renew(record, kLongMs).ok());
    ASSERT_TRUE(store->Poll().ok());
  }
  EXPECT_EQ(revision(), before);
}

TEST_F(EtcdMetadataTest, ForeignBytesBlindNobody) {
  auto store = Connect(server_.Url(), runtime_);
  Acquired(*store, "n", kLongMs);
  int i = 0;
  for (const char* value : {"", "x", "0  ", "nonce 0 1  {}", "nonce 1 1 1,2 {\"stable_id\":3}"}) {
    server_.Put("/{ks}/leases/bad:" + std::to_string(++i), value);
    server_.Put("/{ks}/live/bad:" + std::to_string(i), value);
  }
  server_.Put("/{ks}/leases/no-epoch", "nonce 0  {}");
  Result<MembershipChanges> changes = store->ReadChanges(0);
  ASSERT_TRUE(changes.ok()) << changes.error().ToString();
  EXPECT_EQ(changes->leases.size(), 1u);
  server_.Put("/{ks}/system/route-policy/default", "nonce {[[");
  EXPECT_EQ(store->PutRoutePolicyIfAbsent({}).code(), ErrorCode::kMetadata);
}

// A server that is not what it says, or a proxy in between, is no reason to end the process.
TEST_F(EtcdMetadataTest, KeysThatNobodyAskedForAreRefused) {
  ScriptedGrpc odd([](const ScriptedGrpc::Call& call) {
    etcd::TxnRequest request;
    etcd::TxnResponse reply;
    EXPECT_TRUE(request.ParseFromString(call.message));
    reply.mutable_header()->set_cluster_id(1);
    reply.mutable_header()->set_revision(1);
    const bool first = request.success(1).request_range().count_only();
    for (int i = 0; i < request.success_size(); ++i) {
      // The counts of the first read ask for the second one, which gets a foreign key.
      etcd::RangeResponse& range = *reply.add_responses()->mutable_response_range();
      range.set_count(i % 2);
      if (!first) range.add_kvs()->set_key("x");
    }
    return ScriptedGrpc::Reply{.message = reply.SerializeAsString()};
  });
  Result<uint64_t> known = Connect("etcd://" + odd.Address(), runtime_)->Poll();
  ASSERT_EQ(known.code(), ErrorCode::kMetadata);
  EXPECT_THAT(known.error().context, HasSubstr("that was not asked for"));
}

// A refusal that leaves open what became of the change, each time.
TEST_F(EtcdMetadataTest, AChangeThatIsNeverAnsweredSaysWhatWasSaidOfIt) {
  ScriptedGrpc proxy([](const ScriptedGrpc::Call& call) {
    etcd::TxnRequest request;
    EXPECT_TRUE(request.ParseFromString(call.message));
    if (request.compare_size() > 0) {
      return ScriptedGrpc::Reply{.code = 13, .refusal = "the proxy has lost its way"};
    }
    etcd::TxnResponse reply;
    reply.mutable_header()->set_cluster_id(1);
    reply.mutable_header()->set_revision(1);
    for (int i = 0; i < request.success_size(); ++i)
      reply.add_responses()->mutable_response_range();
    return ScriptedGrpc::Reply{.message = reply.SerializeAsString()};
  });
  const Result<uint64_t> put = Hasty("etcd://" + proxy.Address())->PutDocument("d", "text", 0);
  ASSERT_EQ(put.code(), ErrorCode::kMetadata);
  EXPECT_THAT(put.error().context,
              AllOf(HasSubstr(proxy.Address()), HasSubstr("the proxy has lost its way")));
}

TEST_F(EtcdMetadataTest, MessagesThatMakeNoSenseAreRefused) {
  std::string message;
  ScriptedGrpc odd(
      [&](const ScriptedGrpc::Call&) { return ScriptedGrpc::Reply{.message = message}; });
  auto store = Hasty("etcd://" + odd.Address());
  etcd::TxnResponse good;
  for (int i = 0; i < 3; ++i) good.add_responses()->mutable_response_range();
  etcd::TxnResponse few = good, other = good, revision = good, count = good, key = good;
  few.mutable_responses()->RemoveLast();
  other.mutable_responses(1)->clear_response();
  revision.mutable_header()->set_revision(-1);
  count.mutable_responses(2)->mutable_response_range()->set_count(-1);
  key.mutable_responses(0)->mutable_response_range()->add_kvs()->set_mod_revision(-1);
  message = good.SerializeAsString();
  EXPECT_TRUE(store->Poll().ok());
  for (const etcd::TxnResponse& wrong : {few, other, revision, count, key}) {
    message = wrong.SerializeAsString();
    Result<uint64_t> refused = store->Poll();
    ASSERT_EQ(refused.code(), ErrorCode::kMetadata);
    EXPECT_THAT(refused.error().context, HasSubstr("malformed answer"));
  }
  for (const char* text : {"", "x", "\xff\xff\xff\xff", "\x1a\x7fshort"}) {
    message = text;
    EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata);
  }
}

TEST_F(EtcdMetadataTest, AForkedChildIsRefusedAndMaySetUpItsOwn) {
  auto store = Connect(server_.Url(), runtime_);
  ASSERT_TRUE(store->Poll().ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = store->Poll().code() == ErrorCode::kInvalidState;
    store.reset();
    auto own = Connect(server_.Url(), runtime_);
    bool works = true;
    for (int i = 0; i < 100; ++i) works = works && own->Poll().ok();
    _exit(refused && works ? 0 : 1);
  }
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(store->Poll().ok());  // Both at the same time.
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(store->Poll().ok());
}

TEST_F(EtcdMetadataTest, AnInterruptAndTheLimitOfTheFarewellEndAWait) {
  auto store = Connect(server_.Url(), runtime_);
  ASSERT_TRUE(store->Poll().ok());
  server_.Pause();
  store->EndBy(runtime_.NowMs() + 200);
  EXPECT_LT(ElapsedMs([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kMetadata); }), 1'500u);
  store->EndBy(UINT64_MAX);
  runtime_.SetInterruptCheck([] { return true; });
  EXPECT_LT(ElapsedMs([&] { EXPECT_EQ(store->Poll().code(), ErrorCode::kTransport); }), 1'500u);
  server_.Resume();
}

TEST_F(EtcdMetadataTest, TheJsonGatewayIsNotNeeded) {
  EtcdFixture server(runtime_, {}, {"--enable-grpc-gateway=false"});
  EXPECT_THAT(server.Command("/v3/kv/range", "{}"), HasSubstr("404"));
  auto store = Connect(server.Url(), runtime_);
  const LeaseRecord record = Acquired(*store, "n", kLongMs);
  EXPECT_TRUE(store->Renew(record, kLongMs).ok());
  EXPECT_EQ(Members(*store), 1u);
}

TEST_F(EtcdMetadataTest, RepliesMayBeLarge) {
  auto store = Connect(server_.Url(), runtime_);
  const std::string text(1'000'000, 'x');
  for (const char* name : {"d1", "d2", "d3", "d4"}) {
    ASSERT_TRUE(store->PutDocument(name, text, 0).ok());
  }
  Result<std::vector<MetadataStore::NamedDocument>> all = store->ListDocuments("d");
  ASSERT_TRUE(all.ok()) << all.error().ToString();
  ASSERT_EQ(all->size(), 4u);
  for (const auto& document : *all) EXPECT_TRUE(document.document.text == text);
}

TEST_F(EtcdMetadataTest, AFullServerIsNamed) {
  EtcdFixture server(runtime_, {}, {"--quota-backend-bytes=100000"});
  auto store = Connect(server.Url(), runtime_);
  std::string refusal;
  uint64_t version = 0;
  for (int i = 0; i < 20 && refusal.empty(); ++i) {
    Result<uint64_t> put = store->PutDocument("d", std::string(100'000, 'x'), version);
    if (!put) refusal = put.error().context;
    version = put.value_or(0);
  }
  EXPECT_THAT(refusal, HasSubstr("space exceeded"));
}

}  // namespace
}  // namespace mooncake::testing

// What a client of a daemon can do, over real sockets, with the daemon in this process.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "daemon_fixture.h"

namespace mooncake {
namespace {

TEST_F(DaemonTest, PlainCallsWork) {
  StartDaemon("d-plain");
  auto store = Client();
  ASSERT_TRUE(store);
  EXPECT_TRUE(store->CheckHealth().ok());
  EXPECT_TRUE(store->is_dummy());
  EXPECT_EQ(store->Hostname(), config_.client_server_address);
  for (const size_t size : {0UL, 1UL, 1000UL, 16384UL, 16385UL, 1UL << 20, 5UL << 20, 40UL << 20}) {
    const std::string key = "k" + std::to_string(size);
    const std::string value = ValueOf(key, size);
    ASSERT_TRUE(store->Put(key, BytesOf(value)).ok()) << size;
    EXPECT_TRUE(store->Get(key).value_or("?") == value) << size;
    EXPECT_EQ(store->GetSize(key).value_or(99), size);
    EXPECT_TRUE(store->Exists(key).value_or(false));
    std::string target(size, '?');
    EXPECT_EQ(store->GetInto(key, MutableBytesAt(target.data(), size)).value_or(77), size);
    EXPECT_TRUE(target == value);
    EXPECT_TRUE(store->Remove(key).ok());
    EXPECT_EQ(store->Remove(key).code(), ErrorCode::kNotFound);
    EXPECT_EQ(store->Get(key).code(), ErrorCode::kNotFound);
    EXPECT_EQ(store->GetSize(key).code(), ErrorCode::kNotFound);
  }
  ASSERT_TRUE(store->Put("k", BytesOf("one")).ok());
  ASSERT_TRUE(store->Put("k", BytesOf("three")).ok());
  EXPECT_EQ(store->Get("k").value_or(""), "three");
  std::string small(4, '?');
  EXPECT_EQ(store->GetInto("k", MutableBytesAt(small.data(), 4)).code(), ErrorCode::kTooSmall);
  EXPECT_EQ(store->Get("k", "other").code(), ErrorCode::kNotFound);
  EXPECT_EQ(store->Put("", BytesOf("x")).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->RemoveAll().value_or(99), 1u);
  EXPECT_NE(store->MetricsText().find("mooncake_store_dummy_clients"), std::string::npos);
}

TEST_F(DaemonTest, BatchesReportPerItem) {
  StartDaemon("d-batch");
  auto store = Client();
  std::vector<std::string> keys;
  std::vector<std::string> values;
  for (int i = 0; i < 300; ++i) {
    keys.push_back("key-" + std::to_string(i));
    values.push_back(ValueOf(keys.back(), 20'000 + static_cast<size_t>(i)));
  }
  std::vector<ConstBytes> parts;
  std::vector<PutItem> puts;
  for (const std::string& value : values) parts.push_back(BytesOf(value));
  for (size_t i = 0; i < keys.size(); ++i) puts.push_back({keys[i], {&parts[i], 1}});
  for (const Status& status : store->PutMany(puts, {})) ASSERT_TRUE(status.ok());

  std::vector<std::string_view> names(keys.begin(), keys.end());
  names[7] = "missing";
  std::vector<std::string> got(names.size());
  const auto sizes = store->GetManyAllocated(names, {}, [&](size_t i, uint64_t size) {
    got[i].resize(size);
    return std::optional(MutableBytesAt(got[i].data(), size));
  });
  for (size_t i = 0; i < names.size(); ++i) {
    if (i == 7) {
      EXPECT_EQ(sizes[i].code(), ErrorCode::kNotFound);
    } else {
      ASSERT_TRUE(sizes[i].ok()) << sizes[i].error().ToString();
      EXPECT_TRUE(got[i] == values[i]);
    }
  }
  const auto exist = store->ExistMany(names, {});
  for (size_t i = 0; i < names.size(); ++i) {
    ASSERT_TRUE(exist[i].ok());
    EXPECT_EQ(*exist[i], i == 7 ? Existence::kMissing : Existence::kPresent);
  }
  std::string piece(10, '?');
  const RangeItem ranges[] = {{keys[3], 100, MutableBytesAt(piece.data(), 10)},
                              {keys[3], 20'000, MutableBytesAt(piece.data(), 10)}};
  const auto read = store->GetRanges(ranges, {});
  EXPECT_EQ(read[0].value_or(0), 10u);
  EXPECT_EQ(piece, values[3].substr(100, 10));
  EXPECT_EQ(read[1].code(), ErrorCode::kTooSmall);
  const auto removed = store->RemoveMany(names, {});
  for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(removed[i].ok(), i != 7);
}

// A client copies from where it found a value last; what it uses is what the daemon says is there.
TEST_F(DaemonTest, ReadingAgainFollowsTheTruth) {
  StartDaemon("d-again");
  auto store = Client();
  auto other = Client();
  const MutableBytes pool = memory_.Alloc(4 * kMiB);
  ASSERT_TRUE(store->RegisterBuffer(pool.data(), pool.size()).ok());
  const MutableBytes target = pool.first(kMiB);
  for (int version = 0; version < 5; ++version) {
    const std::string value = ValueOf("k", kMiB - static_cast<size_t>(version / 3), version);
    ASSERT_TRUE(other->Put("k", BytesOf(value)).ok());
    for (int i = 0; i < 3; ++i) {
      std::memset(target.data(), 0, target.size());
      EXPECT_EQ(store->GetInto("k", target).value_or(0), value.size());
      EXPECT_TRUE(TextOf(target.first(value.size())) == value) << version;
    }
  }
  // Of two items with one target, the one that is missing leaves the other's bytes alone.
  const std::string good = ValueOf("good", kMiB);
  ASSERT_TRUE(other->Put("good", BytesOf(good)).ok());
  const GetItem both[] = {{"good", {&target, 1}}, {"k", {&target, 1}}};
  ASSERT_TRUE(store->GetInto("good", target).ok());
  ASSERT_TRUE(store->GetInto("k", target).ok());
  ASSERT_TRUE(other->Remove("k").ok());
  const auto read = store->GetMany(both, {});
  EXPECT_EQ(read[0].value_or(0), kMiB);
  EXPECT_EQ(read[1].code(), ErrorCode::kNotFound);
  EXPECT_TRUE(TextOf(target) == good);
}

// What is said about a key may quote a part of it, cut in the middle of a character.
TEST_F(DaemonTest, AMissingKeyInAnotherScriptIsOnlyMissing) {
  StartDaemon("d-script");
  auto store = Client();
  std::string key = "k";
  for (int i = 0; i < 100; ++i) key += "\xc3\xa9";
  ASSERT_TRUE(store->Put("good", BytesOf("v")).ok());
  const std::string_view names[] = {key, "good"};
  std::string got;
  const auto read = store->GetManyAllocated(names, {}, [&](size_t, uint64_t size) {
    got.resize(size);
    return std::optional(MutableBytesAt(got.data(), size));
  });
  EXPECT_EQ(read[0].code(), ErrorCode::kNotFound);
  EXPECT_TRUE(read[1].ok());
  EXPECT_EQ(store->RemoveMany(names, {})[0].code(), ErrorCode::kNotFound);
  EXPECT_EQ(store->GetSize(key).code(), ErrorCode::kNotFound);
}

TEST_F(DaemonTest, RegisteredMemoryIsReadInPlace) {
  StartDaemon("d-registered");
  auto store = Client();
  const MutableBytes pool = memory_.Alloc(8 * kMiB);
  const std::string value = ValueOf("a", 3 * kMiB);
  EXPECT_FALSE(store->IsRegistered(pool.data(), 1));
  std::string elsewhere(100, 'x');
  EXPECT_EQ(store->RegisterBuffer(elsewhere.data(), 100).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(store->UnregisterBuffer(pool.data()).code(), ErrorCode::kNotFound);
  ASSERT_TRUE(store->RegisterBuffer(pool.data(), 4 * kMiB).ok());
  EXPECT_TRUE(store->IsRegistered(pool.data() + kMiB, kMiB));
  EXPECT_FALSE(store->IsRegistered(pool.data() + kMiB, 4 * kMiB));
  // A sub-range that is not the start of the allocation.
  ASSERT_TRUE(store->RegisterBuffer(pool.data() + 5 * kMiB, kMiB).ok());
  EXPECT_TRUE(store->IsRegistered(pool.data() + 5 * kMiB, kMiB));

  std::memcpy(pool.data() + kMiB / 2, value.data(), value.size());
  ASSERT_TRUE(store->Put("a", pool.subspan(kMiB / 2, value.size())).ok());
  EXPECT_TRUE(store->Get("a").value_or("") == value);
  std::memset(pool.data(), 0, pool.size());
  EXPECT_EQ(store->GetInto("a", pool.first(4 * kMiB)).value_or(0), value.size());
  EXPECT_TRUE(TextOf(pool.first(value.size())) == value);
  // Pieces of several kinds make one value.
  const ConstBytes parts[] = {pool.first(1000), BytesOf(elsewhere), pool.subspan(5 * kMiB, 10)};
  const PutItem item{"b", parts};
  ASSERT_TRUE(store->PutMany({&item, 1}, {})[0].ok());
  EXPECT_TRUE(store->Get("b").value_or("") ==
              value.substr(0, 1000) + elsewhere + std::string(10, '\0'));

  ASSERT_TRUE(store->UnregisterBuffer(pool.data()).ok());
  EXPECT_FALSE(store->IsRegistered(pool.data(), 1));
  EXPECT_EQ(Count("dummy_regions", "default"), 1u);
  ASSERT_TRUE(store->UnregisterBuffer(pool.data() + 5 * kMiB).ok());
  EXPECT_EQ(store->UnregisterBuffer(pool.data()).code(), ErrorCode::kNotFound);
}

// An engine frees its pool and gets the same address again.
TEST_F(DaemonTest, MemoryThatWasReplacedIsNotTheRegisteredOne) {
  StartDaemon("d-replaced");
  auto store = Client();
  const MutableBytes old = memory_.Alloc(kMiB);
  ASSERT_TRUE(store->RegisterBuffer(old.data(), kMiB).ok());
  std::memset(old.data(), 'o', kMiB);
  ASSERT_TRUE(store->Put("k", old).ok());
  const void* address = old.data();
  memory_.Free(address);
  EXPECT_FALSE(store->IsRegistered(address, 1));
  const MutableBytes fresh = memory_.Alloc(kMiB);
  std::memset(fresh.data(), 'n', kMiB);
  if (fresh.data() == address) {
    EXPECT_FALSE(store->IsRegistered(address, 1));
  }
  ASSERT_TRUE(store->Put("k", fresh).ok());
  EXPECT_EQ(store->Get("k").value_or("")[kMiB - 1], 'n');
  ASSERT_TRUE(store->RegisterBuffer(fresh.data(), kMiB).ok());
  std::memset(fresh.data(), 'm', kMiB);
  ASSERT_TRUE(store->Put("k", fresh).ok());
  EXPECT_EQ(store->Get("k").value_or("")[kMiB - 1], 'm');
}

TEST_F(DaemonTest, EqualAndOverlappingRegistrationsFromManyThreadsLeaveNothing) {
  StartDaemon("d-threads");
  auto store = Client();
  const MutableBytes pool = memory_.Alloc(4 * kMiB);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      std::byte* base = pool.data() + static_cast<size_t>(t % 3) * 1000;
      for (int i = 0; i < 30; ++i) {
        if (!store->RegisterBuffer(base, kMiB + static_cast<size_t>(t)).ok()) ++failures;
        const std::string key = "k" + std::to_string(t);
        if (!store->Put(key, ConstBytes(base, 5000)).ok()) ++failures;
        if (!store->UnregisterBuffer(base).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_FALSE(store->IsRegistered(pool.data(), 1));
  EXPECT_EQ(Count("dummy_region_bytes", "default"), 0u);
}

TEST_F(DaemonTest, ScopesAreServedAsConfigured) {
  config_.store = NodeConfigFor("d-scopes", 16 * kMiB);
  config_.store.worker_scope = std::string(200, 's');
  config_.store.keyspace = "ks";
  config_.keyspace_given = true;
  StartDaemon("d-scopes");
  DummyConfig config = ClientConfig();
  for (const std::string& scope :
       {std::string(200, 's'), std::string("ks"), std::string("worker-1")}) {
    config.worker_scope = scope;
    auto store = Client(config);
    ASSERT_TRUE(store) << scope;
    const MutableBytes buffer = memory_.Alloc(4096);
    EXPECT_TRUE(store->RegisterBuffer(buffer.data(), 4096).ok());
    EXPECT_TRUE(store->Put("k", buffer).ok());
  }
  config.worker_scope.clear();
  EXPECT_TRUE(Client(config));  // worker-1
  config.keyspace = "ks";
  EXPECT_TRUE(Client(config));
  config.worker_scope = "stranger";
  const auto refused = Store::OpenDummy(config);
  EXPECT_EQ(refused.code(), ErrorCode::kInvalidState);
  EXPECT_NE(refused.error().context.find("stranger"), std::string::npos);
}

TEST_F(DaemonTest, TheClusterSecretIsNeeded) {
  config_.store = NodeConfigFor("d-secret", 16 * kMiB);
  config_.store.cluster_secret = "right";
  StartDaemon("d-secret");
  DummyConfig config = ClientConfig();
  for (const char* secret : {"", "wrong"}) {
    config.cluster_secret = secret;
    const auto refused = Store::OpenDummy(config);
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidState) << secret;
    EXPECT_NE(refused.error().context.find("secret"), std::string::npos);
  }
  config.cluster_secret = "right";
  auto store = Client(config);
  ASSERT_TRUE(store);
  EXPECT_TRUE(store->Put("k", BytesOf("v")).ok());
  EXPECT_EQ(Count("dummy_refused_total", "secret"), 2u);
}

TEST_F(DaemonTest, AMissingDaemonIsNamed) {
  DummyConfig config = ClientConfig();
  config.server_address = "127.0.0.1:1";
  config.connect_timeout_ms = 300;
  const auto refused = Store::OpenDummy(config);
  EXPECT_EQ(refused.code(), ErrorCode::kTransport);
  EXPECT_NE(refused.error().context.find("127.0.0.1:1"), std::string::npos);
}

TEST_F(DaemonTest, WhatOnlyARealStoreHasIsRefused) {
  StartDaemon("d-real");
  auto store = Client();
  EXPECT_EQ(store->QueryRoute("k").code(), ErrorCode::kUnsupported);
  EXPECT_EQ(store->Heartbeat().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(store->SetState("active").code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(store->ListSegments(false).empty());
  EXPECT_EQ(store->LocalPoolCapacity(), 0u);
  EXPECT_FALSE(store->LocalPoolTryAcquire(1).has_value());
  store->Close();
  EXPECT_EQ(store->Put("k", BytesOf("v")).code(), ErrorCode::kInvalidState);
  EXPECT_EQ(store->CheckHealth().code(), ErrorCode::kInvalidState);
}

TEST_F(DaemonTest, ARestartedDaemonIsUsedAgainWithTheRegisteredMemory) {
  StartDaemon("d-restart");
  auto store = Client();
  const MutableBytes buffer = memory_.Alloc(kMiB);
  ASSERT_TRUE(store->RegisterBuffer(buffer.data(), kMiB).ok());
  const std::string value = ValueOf("k", kMiB);
  std::memcpy(buffer.data(), value.data(), kMiB);
  ASSERT_TRUE(store->Put("k", buffer).ok());
  EXPECT_TRUE(store->Get("k").value_or("") == value);
  for (int round = 0; round < 2; ++round) {
    daemon_.reset();
    EXPECT_FALSE(store->Put("k", buffer).ok());
    StartDaemon("d-restart");
    Status status = InvalidState("");
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!status.ok() && std::chrono::steady_clock::now() < limit) {
      status = store->Put("k", buffer);
    }
    ASSERT_TRUE(status.ok()) << status.error().ToString();
    EXPECT_TRUE(store->Get("k").value_or("") == value);
    EXPECT_TRUE(store->IsRegistered(buffer.data(), kMiB));
  }
}

TEST_F(DaemonTest, SixtyFourClientsAtOnce) {
  StartDaemon("d-many");
  std::vector<std::unique_ptr<Store>> stores;
  for (int i = 0; i < 64; ++i) stores.push_back(Client());
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 64; ++t) {
    threads.emplace_back([&, t] {
      const std::string key = "k" + std::to_string(t);
      const std::string value = ValueOf(key, 50'000);
      for (int i = 0; i < 5; ++i) {
        if (!stores[static_cast<size_t>(t)]->Put(key, BytesOf(value)).ok()) ++wrong;
        if (stores[static_cast<size_t>(t)]->Get(key).value_or("") != value) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_EQ(daemon_->sessions().count(), 64u);
  stores.clear();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (daemon_->sessions().count() > 0 && std::chrono::steady_clock::now() < limit) {
    std::this_thread::yield();
  }
  EXPECT_EQ(daemon_->sessions().count(), 0u);
}

TEST_F(DaemonTest, AMissKeepsItsReason) {
  StartDaemon("d-reasons");
  auto store = Client();
  ASSERT_TRUE(store->Put("k", BytesOf("value")).ok());
  EXPECT_EQ(store->Get("k", "somebody else").code(), ErrorCode::kNotFound);
  EXPECT_EQ(Count("soft_failure_total", "other_scope"), 1u);
}

TEST_F(DaemonTest, AnAbandonedPutIsNotPublished) {
  StartDaemon("d-abandoned");
  auto store = Client();
  ASSERT_TRUE(store->Put("k", BytesOf("old")).ok());
  const std::string value(1000, 'x');
  const ConstBytes part = BytesOf(value);
  const PutItem item{"k", {&part, 1}};
  // What the service does for a call whose mark is gone when its bytes have been read.
  const auto statuses = daemon_->store().PutWanted({&item, 1}, {}, [] { return false; });
  EXPECT_EQ(statuses[0].code(), ErrorCode::kTransport);
  EXPECT_EQ(store->Get("k").value_or(""), "old");
  EXPECT_EQ(daemon_->store().ListSegments(false)[0].used_bytes, 64u);
}

TEST_F(DaemonTest, AnAbandonedPutLeavesAnotherNodeAsItWas) {
  StartDaemon("d-abandoned-remote");
  auto node = Node("d-abandoned-remote");
  std::string key;  // One that the other node answers for.
  for (int i = 0; key.empty(); ++i) {
    ASSERT_LT(i, 1000);
    const std::string name = "k" + std::to_string(i);
    ASSERT_TRUE(daemon_->store().Put(name, BytesOf("old")).ok());
    const auto route = node->QueryRoute(name);
    ASSERT_TRUE(route.ok());
    if (route->replicas[0].owner == node->NodeName()) key = name;
  }
  const std::string value(1000, 'x');
  const ConstBytes part = BytesOf(value);
  const PutItem item{key, {&part, 1}};
  // The caller is there until its bytes are on their way to the node.
  const auto put = [&](bool if_absent) {
    PutOptions options;
    options.if_absent = if_absent;
    int asked = 0;
    const auto statuses =
        daemon_->store().PutWanted({&item, 1}, options, [&] { return asked++ == 0; });
    EXPECT_EQ(asked, 2);
    return statuses[0].code();
  };
  EXPECT_EQ(put(true), ErrorCode::kTransport);
  EXPECT_EQ(node->Get(key).value_or(""), "old");
  // Nothing is published over the old value either.
  EXPECT_EQ(put(false), ErrorCode::kTransport);
  EXPECT_EQ(node->Get(key).value_or(""), "old");
  EXPECT_TRUE(daemon_->store().PutMany({&item, 1}, {})[0].ok());
  EXPECT_EQ(node->Get(key).value_or(""), value);
}

}  // namespace
}  // namespace mooncake

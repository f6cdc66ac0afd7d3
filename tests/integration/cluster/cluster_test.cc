// Several stores in one process, over TCP on the loopback, sharing memory:// metadata.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "mooncake/store.h"

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

StoreConfig ConfigFor(const std::string& cluster, uint64_t segment_bytes) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://" + cluster;
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  config.request_timeout_ms = 10'000;
  config.transfer_stall_timeout_ms = 2'000;
  return config;
}

std::unique_ptr<Store> Open(const StoreConfig& config) {
  auto store = Store::Open(config);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return store.ok() ? *std::move(store) : nullptr;
}

// Every byte tells the key and its position.
std::string ValueOf(const std::string& key, size_t size, int version = 0) {
  std::string value(size, '\0');
  uint64_t state = std::hash<std::string>{}(key) + static_cast<uint64_t>(version);
  for (char& byte : value) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56);
  }
  return value;
}

TEST(Cluster, ASingleNodeServesItself) {
  auto store = Open(ConfigFor("single", 16 * kMiB));
  ASSERT_TRUE(store->Put("k", BytesOf("v")).ok());
  EXPECT_EQ(store->Get("k").value_or("?"), "v");
  EXPECT_TRUE(store->Exists("k").value_or(false));
  EXPECT_EQ(store->GetSize("k").value_or(0), 1u);
  EXPECT_TRUE(store->Put("k", BytesOf("longer")).ok());
  EXPECT_EQ(store->Get("k").value_or("?"), "longer");
  EXPECT_TRUE(store->Remove("k").ok());
  EXPECT_EQ(store->Get("k").code(), ErrorCode::kNotFound);
  EXPECT_EQ(store->Remove("k").code(), ErrorCode::kNotFound);
  EXPECT_TRUE(store->Put("empty", {}).ok());
  EXPECT_EQ(store->Get("empty").value_or("?"), "");
  EXPECT_EQ(store->RemoveAll().value_or(99), 1u);
  EXPECT_EQ(store->ListSegments(false)[0].used_bytes, 0u);
}

TEST(Cluster, AClientWithoutStorageWritesAndReadsThroughOthers) {
  auto a = Open(ConfigFor("remote", 64 * kMiB));
  auto b = Open(ConfigFor("remote", 64 * kMiB));
  auto w = Open(ConfigFor("remote", 0));
  std::vector<std::string> keys;
  for (int i = 0; i < 200; ++i) keys.push_back("key-" + std::to_string(i));
  for (const std::string& key : keys) {
    ASSERT_TRUE(w->Put(key, BytesOf(ValueOf(key, 100'000))).ok()) << key;
  }
  for (Store* store : {a.get(), b.get(), w.get()}) {
    for (const std::string& key : keys) {
      const auto value = store->Get(key);
      ASSERT_TRUE(value.ok()) << key << value.error().ToString();
      EXPECT_TRUE(*value == ValueOf(key, 100'000));
    }
  }
  EXPECT_EQ(w->RemoveAll().value_or(0), keys.size());
  EXPECT_EQ(a->ListSegments(false)[0].used_bytes + b->ListSegments(false)[0].used_bytes, 0u);
}

TEST(Cluster, AWriteToOneNodeIsReadableOnAnotherAtOnce) {
  auto a = Open(ConfigFor("at-once", 16 * kMiB));
  auto b = Open(ConfigFor("at-once", 16 * kMiB));
  for (int i = 0; i < 500; ++i) {
    const std::string key = "k" + std::to_string(i % 50);
    const std::string value = ValueOf(key, 1000, i);
    ASSERT_TRUE(a->Put(key, BytesOf(value)).ok());
    ASSERT_TRUE(b->Get(key).value_or("") == value);
    ASSERT_TRUE(b->Remove(key).ok());
    ASSERT_FALSE(a->Exists(key).value_or(true));
  }
}

TEST(Cluster, AJoiningNodeTakesItsSlotsOverWithTheirRoutes) {
  auto a = Open(ConfigFor("join", 64 * kMiB));
  for (int i = 0; i < 300; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(a->Put(key, BytesOf(ValueOf(key, 5000))).ok());
  }
  auto b = Open(ConfigFor("join", 64 * kMiB));
  for (int i = 0; i < 300; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(b->Get(key).value_or("") == ValueOf(key, 5000)) << key;
    ASSERT_TRUE(a->Get(key).value_or("") == ValueOf(key, 5000)) << key;
  }
}

TEST(Cluster, ALeavingNodeTakesOnlyItsOwnBytes) {
  auto a = Open(ConfigFor("leave", 64 * kMiB));
  auto b = Open(ConfigFor("leave", 64 * kMiB));
  std::vector<std::string> on_a;
  for (int i = 0; i < 100; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(a->Put(key, BytesOf(ValueOf(key, 5000))).ok());
    if (a->QueryRoute(key)->replicas[0].owner == a->NodeName()) on_a.push_back(key);
  }
  b->Close();
  for (int i = 0; i < 100; ++i) {
    const std::string key = "key-" + std::to_string(i);
    const bool kept = std::find(on_a.begin(), on_a.end(), key) != on_a.end();
    EXPECT_EQ(a->Exists(key).value_or(false), kept) << key;
    EXPECT_EQ(a->Get(key).ok(), kept) << key;
  }
}

TEST(Cluster, TwoReplicasGoToTwoOwners) {
  auto a = Open(ConfigFor("replicas", 64 * kMiB));
  auto b = Open(ConfigFor("replicas", 64 * kMiB));
  ReplicateConfig policy;
  policy.replica_num = 2;
  PutOptions options;
  options.replicate = &policy;
  for (int i = 0; i < 50; ++i) {
    const std::string key = "key-" + std::to_string(i);
    ASSERT_TRUE(a->Put(key, BytesOf(ValueOf(key, 5000)), options).ok());
    const auto route = a->QueryRoute(key);
    ASSERT_TRUE(route.ok());
    ASSERT_EQ(route->replicas.size(), 2u);
    EXPECT_NE(route->replicas[0].owner, route->replicas[1].owner);
  }
  b->Close();
  for (int i = 0; i < 50; ++i) {
    const std::string key = "key-" + std::to_string(i);
    const Result<std::string> got = a->Get(key);
    ASSERT_TRUE(got.ok()) << got.error().ToString();
    EXPECT_TRUE(*got == ValueOf(key, 5000)) << key;
  }
}

TEST(Cluster, WritesNeverFailWhileSomethingCanBeEvicted) {
  auto a = Open(ConfigFor("evict", 8 * kMiB));
  auto w = Open(ConfigFor("evict", 0));
  std::vector<std::thread> writers;
  std::atomic<int> failed{0};
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      Store& store = t % 2 == 0 ? *a : *w;
      for (int i = 0; i < 300; ++i) {
        const std::string key = std::to_string(t) + "-" + std::to_string(i);
        if (!store.Put(key, BytesOf(ValueOf(key, 100'000))).ok()) ++failed;
        const auto value = store.Get(key);
        if (value.ok() && *value != ValueOf(key, 100'000)) ++failed;
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(failed.load(), 0);
}

}  // namespace
}  // namespace mooncake

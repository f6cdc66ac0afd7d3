// One etcd server for a whole test program, emptied for every test.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "metadata/etcd/etcd_metadata.h"
#include "runtime/real_runtime.h"
#include "support/etcd_fixture.h"
#include "support/leases.h"
#include "unit/metadata/contract.h"

namespace mooncake::testing {

inline constexpr uint64_t kLongMs = 600'000;

inline std::unique_ptr<MetadataStore> Connect(const std::string& url, Runtime& runtime,
                                              const metadata::EtcdOptions& options = {
                                                  .keyspace = "ks"}) {
  auto store = metadata::EtcdMetadata::Open(url, options, runtime);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return *std::move(store);
}

inline runtime::RealRuntime& Clock() {
  static runtime::RealRuntime runtime;
  return runtime;
}

class EtcdWorld final : public MetadataWorld {
 public:
  EtcdWorld() { Server().Flush(); }
  std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) override {
    return testing::Connect(Server().Url(), Clock(), {.keyspace = keyspace});
  }
  // etcd's leases are whole seconds, and it looks for those that are over twice a second.
  void Pass(uint64_t ms) override {
    Clock().SleepMs(ms);
    Server().AwaitLapses();
  }
  void Forget() override { Server().Flush(); }

  static EtcdFixture& Server() {
    static EtcdFixture server(Clock());
    return server;
  }
};

// From now on only root may do anything there. `password` is written as in JSON.
inline void EnableUser(EtcdFixture& server, const std::string& password) {
  server.Command("/v3/auth/user/add", R"({"name": "root", "password": ")" + password + "\"}");
  server.Command("/v3/auth/role/add", R"({"name": "root"})");
  server.Command("/v3/auth/user/grant", R"({"user": "root", "role": "root"})");
  server.Command("/v3/auth/enable", "{}");
}

class EtcdMetadataTest : public ::testing::Test {
 protected:
  EtcdMetadataTest() { server_.Flush(); }

  uint64_t ElapsedMs(const std::function<void()>& body) {
    return testing::ElapsedMs(runtime_, body);
  }
  std::unique_ptr<MetadataStore> Hasty(const std::string& url) {
    return Connect(url, runtime_,
                   {.keyspace = "ks", .timeouts = {.connect_ms = 500, .io_ms = 500}});
  }
  LeaseRecord Acquired(MetadataStore& store, const std::string& stable_id, uint64_t ttl_ms) {
    LeaseRecord record = Named(stable_id);
    Result<NodeId> id = store.Acquire(record, ttl_ms, std::nullopt, false);
    EXPECT_TRUE(id.ok()) << (id.ok() ? "" : id.error().ToString());
    record.id = id.value_or(NodeId{});
    return record;
  }
  size_t Members(MetadataStore& store) { return store.ReadChanges(0).value_or({}).leases.size(); }

  runtime::RealRuntime runtime_;
  EtcdFixture& server_ = EtcdWorld::Server();
};

}  // namespace mooncake::testing

// Metadata services that answer nonsense: a damaged file, an etcd and a Redis that are none.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/mutex.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "metadata/etcd/etcd_metadata.h"
#include "metadata/redis/redis_metadata.h"
#include "metadata/sqlite/sqlite_metadata.h"
#include "mooncake/etcd.pb.h"
#include "runtime/real_runtime.h"
#include "support/leases.h"
#include "support/manual_runtime.h"
#include "support/scripted_grpc.h"
#include "transfer/tcp/socket.h"

namespace mooncake::metadata {
namespace {

using fuzz::Format;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using testing::ManualRuntime;
using testing::Named;

constexpr uint64_t kTtlMs = 600'000;

// kMetadata: what came is of no use. The others are what a service may well say.
std::string WrongOutcome(ErrorCode code) {
  MC_FUZZ_CHECK(code == ErrorCode::kOk || code == ErrorCode::kMetadata ||
                code == ErrorCode::kConflict || code == ErrorCode::kNotFound ||
                code == ErrorCode::kStaleEpoch);
  return kRight;
}

// Makes every call once.
std::string AskAll(MetadataStore& store) {
  std::string wrong = WrongOutcome(store.Poll().code());
  const Result<MembershipChanges> changes = store.ReadChanges(0);
  wrong += WrongOutcome(changes.code());
  if (changes) {
    for (const LeaseRecord& lease : changes->leases) MC_FUZZ_CHECK(!lease.id.stable_id.empty());
  }
  wrong += WrongOutcome(store.GetDocument("d").code());
  const auto documents = store.ListDocuments("d");
  wrong += WrongOutcome(documents.code());
  if (documents) {
    for (const auto& document : *documents) MC_FUZZ_CHECK(document.name.starts_with("d"));
  }
  wrong += WrongOutcome(store.PutRoutePolicyIfAbsent({.created_by = "n:1"}).code());
  LeaseRecord lease = Named("n");
  const Result<NodeId> id = store.Acquire(lease, kTtlMs, std::nullopt, false);
  wrong += WrongOutcome(id.code());
  lease.id = id.value_or({"n", 1});
  wrong += WrongOutcome(store.Renew(lease, kTtlMs).code());
  return wrong;
}

std::string ContentOf(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

TEST(StoreFuzz, ADamagedFileIsUsedOrRefused) {
  runtime::RealRuntime runtime;
  const std::string folder =
      std::filesystem::path(::testing::TempDir()) / ("fuzz-sqlite-" + std::to_string(getpid()));
  const std::string path = folder + "/m.db";
  const auto open = [&] {
    return SqliteMetadata::Open("sqlite://" + path, {.busy_timeout_ms = 100}, runtime);
  };
  {
    auto store = *open();
    EXPECT_TRUE(store->Acquire(Named("n"), kTtlMs, std::nullopt, false).ok());
    EXPECT_TRUE(store->PutDocument("d", "text", 0).ok());
    EXPECT_TRUE(store->PutRoutePolicyIfAbsent({.created_by = "n:1"}).ok());
  }
  RunTarget({.samples = {ContentOf(path)},
             .format = Format::kBinary,
             .check =
                 [&](const std::string& input) {
                   std::filesystem::remove_all(folder);
                   std::filesystem::create_directories(folder);
                   std::ofstream(path, std::ios::binary) << input;
                   const auto store = open();
                   if (!store) {
                     return fuzz::WrongError(store.error(), ErrorCode::kMetadata, "sqlite");
                   }
                   return AskAll(**store);
                 },
             .cost = 40});
  std::filesystem::remove_all(folder);
}

TEST(StoreFuzz, AnEtcdThatAnswersNonsenseIsRefused) {
  etcd::TxnResponse sample;
  sample.mutable_header()->set_revision(7);
  sample.set_succeeded(true);
  for (const char* name : {"meta", "leases/n:1", "live/n:1"}) {
    auto& range = *sample.add_responses()->mutable_response_range();
    range.set_count(1);
    range.add_kvs()->set_key("/{}/" + std::string(name));
    range.mutable_kvs(0)->set_value("nonce 5 6 7");
    range.mutable_kvs(0)->set_mod_revision(5);
  }
  etcd::LeaseGrantResponse lease;
  lease.set_id(5);
  base::Mutex mu;
  std::string answer;
  testing::ScriptedGrpc server([&](const testing::ScriptedGrpc::Call&) {
    base::MutexLock lock(mu);
    return testing::ScriptedGrpc::Reply{.message = answer};
  });
  ManualRuntime runtime;  // Pauses between attempts take no time.
  auto store = *EtcdMetadata::Open("etcd://" + server.Address(), {}, runtime);
  RunTarget({.samples = {sample.SerializeAsString(), lease.SerializeAsString()},
             .format = Format::kBinary,
             .check =
                 [&](const std::string& input) {
                   {
                     base::MutexLock lock(mu);
                     answer = input;
                   }
                   return AskAll(*store);
                 },
             .allocated_bytes_max = 100 * fuzz::kReservedByParse,
             .cost = 40});
}

// Answers each command on a loopback port with the same bytes, and closes the connection.
class SameAnswer {
 public:
  SameAnswer() {
    auto listener = transfer::ListenOn("127.0.0.1", port_, 0);
    if (!listener.ok()) abort();
    listener_ = *std::move(listener);
    thread_ = std::thread([this] { Serve(); });
  }
  ~SameAnswer() {
    stop_ = true;
    thread_.join();
  }
  uint16_t port() const { return port_; }
  void Set(const std::string& answer) {
    base::MutexLock lock(mu_);
    answer_ = answer;
  }

 private:
  void Serve() {
    constexpr int kLookMs = 20;
    while (!stop_) {
      pollfd look = {listener_.get(), POLLIN, 0};
      if (poll(&look, 1, kLookMs) <= 0) continue;
      const transfer::UniqueFd peer(accept(listener_.get(), nullptr, nullptr));
      char command[4096];
      if (recv(peer.get(), command, sizeof command, 0) <= 0) continue;
      base::MutexLock lock(mu_);
      (void)!send(peer.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL);
    }
  }

  uint16_t port_ = 0;
  transfer::UniqueFd listener_;
  base::Mutex mu_;
  std::string answer_ MC_GUARDED_BY(mu_);
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// hiredis makes room for as many items as are announced, however many that is.
bool AnnouncesMany(const std::string& input) {
  for (size_t at = input.find('*'); at != std::string::npos; at = input.find('*', at + 1)) {
    const size_t end = std::min(input.find_first_not_of("0123456789", at + 1), input.size());
    if (end - at > 6) return true;
  }
  return false;
}

TEST(StoreFuzz, ARedisThatAnswersNonsenseIsRefused) {
  SameAnswer server;
  ManualRuntime runtime;
  auto store =
      *RedisMetadata::Open("redis://127.0.0.1:" + std::to_string(server.port()), {}, runtime);
  const auto reply = [](const std::vector<std::string>& items) {
    std::string text = "*" + std::to_string(items.size()) + "\r\n";
    for (const auto& item : items)
      text += "$" + std::to_string(item.size()) + "\r\n" + item + "\r\n";
    return text;
  };
  RunTarget(
      {.samples = {reply({"ok", "7", "1", "n:1", "0 0 {}"}), "-ERR no\r\n", ":7\r\n", "$-1\r\n",
                   reply({"held", "8", "n:1"}), reply({"held", "8"}),
                   reply({"ok", "d", "3", "text"}), "+OK\r\n", "*2\r\n*1\r\n:1\r\n$2\r\nok\r\n"},
       .check =
           [&](const std::string& input) {
             if (AnnouncesMany(input)) return kRight;
             server.Set(input);
             return AskAll(*store);
           },
       .cost = 40});
}

}  // namespace
}  // namespace mooncake::metadata

#include "integration/hammer/worker.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>
#include <vector>

#include "allocator/extent_allocator.h"
#include "base/hash.h"
#include "integration/hammer/values.h"
#include "mooncake/store.h"
#include "runtime/real_runtime.h"

namespace mooncake::hammer {

namespace {

constexpr size_t kBatchPut = 8;
constexpr size_t kBatchGet = 16;

struct Tally {
  std::atomic<uint64_t> puts{0};
  std::atomic<uint64_t> puts_failed{0};
  std::atomic<uint64_t> gets{0};
  std::atomic<uint64_t> get_errors{0};  // Neither a value nor a miss.
  std::atomic<uint64_t> wrong{0};
  std::atomic<uint64_t> worst_ms{0};
  std::mutex mu;
  std::string first_error;

  void Note(const std::string& error) {
    std::lock_guard lock(mu);
    if (first_error.empty()) first_error = error;
  }
};

// One thread's stream of calls.
class Hammerer {
 public:
  Hammerer(Store& store, Runtime& runtime, Tally& tally, uint64_t seed)
      : store_(store), runtime_(runtime), tally_(tally), state_(seed) {}

  void Run(uint64_t until_ms) {
    while (runtime_.NowMs() < until_ms) {
      const uint64_t before_ms = runtime_.NowMs();
      Step();
      const uint64_t took_ms = runtime_.NowMs() - before_ms;
      uint64_t worst = tally_.worst_ms;
      while (worst < took_ms && !tally_.worst_ms.compare_exchange_weak(worst, took_ms)) {
      }
    }
  }

 private:
  uint64_t Draw(uint64_t below) { return base::Mix64(++state_) % below; }
  std::string DrawKey() { return KeyOf(static_cast<int>(Draw(kKeys))); }
  // Small ones more often than large ones.
  size_t DrawSize() { return kValueMin + Draw(Draw(kValueMax - kValueMin) + 1); }

  void Step() {
    const uint64_t dice = Draw(100);
    if (dice < 35) return Put(1);
    if (dice < 45) return Put(kBatchPut);
    if (dice < 75) return Get(1);
    if (dice < 90) return Get(kBatchGet);
    if (dice < 95) return Remove();
    (void)store_.Exists(DrawKey());
  }

  void Put(size_t count) {
    std::vector<std::string> keys, values;
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(DrawKey());
      values.push_back(ValueOf(keys.back(), base::Mix64(++state_), DrawSize()));
    }
    std::vector<ConstBytes> parts;
    std::vector<PutItem> items;
    for (const std::string& value : values) parts.push_back(BytesOf(value));
    for (size_t i = 0; i < count; ++i) items.push_back({keys[i], {&parts[i], 1}});
    ReplicateConfig policy;
    policy.replica_num = 1 + Draw(8) / 7;
    policy.prefer_local = Draw(2) == 0;
    PutOptions options;
    if (Draw(4) == 0) options.replicate = &policy;
    options.if_absent = count > 1 && Draw(2) == 0;
    for (const Status& status : store_.PutMany(items, options)) {
      ++tally_.puts;
      if (status.ok()) continue;
      ++tally_.puts_failed;
      tally_.Note("put: " + status.error().ToString());
    }
  }

  void Get(size_t count) {
    std::vector<std::string> keys, values(count);
    for (size_t i = 0; i < count; ++i) keys.push_back(DrawKey());
    const std::vector<std::string_view> views(keys.begin(), keys.end());
    const auto results = store_.GetManyAllocated(views, {}, [&](size_t i, uint64_t size) {
      values[i].resize(size);
      return std::optional<MutableBytes>(MutableBytesAt(values[i].data(), size));
    });
    for (size_t i = 0; i < count; ++i) {
      ++tally_.gets;
      if (results[i].ok()) {
        if (IsValueOf(keys[i], values[i])) continue;
        ++tally_.wrong;
        tally_.Note("wrong bytes: " + keys[i]);
      } else if (results[i].code() != ErrorCode::kNotFound) {
        ++tally_.get_errors;
        tally_.Note("get: " + results[i].error().ToString());
      }
    }
  }

  void Remove() {
    const std::string key = DrawKey();
    const Status status = store_.Remove(key);
    if (status.ok() || status.code() == ErrorCode::kNotFound) return;
    ++tally_.get_errors;
    tally_.Note("remove: " + status.error().ToString());
  }

  Store& store_;
  Runtime& runtime_;
  Tally& tally_;
  uint64_t state_;
};

class Worker {
 public:
  Worker(Store& store, int threads, uint64_t seed)
      : store_(store), threads_(threads), seed_(seed) {}

  std::string Answer(const std::string& command, uint64_t number) {
    if (command == "run") return Hammer(number);
    if (command == "keep") return Keep(static_cast<int>(number));
    if (command == "check") return Check(static_cast<int>(number));
    if (command == "owners") return Owners(static_cast<int>(number));
    if (command == "used") return std::to_string(store_.ListSegments(false)[0].used_bytes);
    if (command == "live") return Live();
    return "unknown command";
  }

 private:
  std::string Hammer(uint64_t ms) {
    Tally tally;
    const uint64_t until_ms = runtime_.NowMs() + ms;
    std::vector<std::thread> threads;
    for (int t = 0; t < threads_; ++t) {
      threads.emplace_back(
          [&, t] { Hammerer(store_, runtime_, tally, base::Mix64(seed_ * 64 + t)).Run(until_ms); });
    }
    for (std::thread& thread : threads) thread.join();
    std::ostringstream line;
    line << tally.puts << ' ' << tally.puts_failed << ' ' << tally.gets << ' ' << tally.get_errors
         << ' ' << tally.wrong << ' ' << tally.worst_ms << ' ' << tally.first_error;
    return line.str();
  }

  std::string Keep(int count) {
    int failed = 0;
    for (int i = 0; i < count; ++i) {
      const std::string key = KeptKeyOf(i);
      failed += !store_.Put(key, BytesOf(ValueOf(key, i, 1000))).ok();
    }
    return std::to_string(failed);
  }

  // '+' right, '-' missed, '!' wrong, '?' an error; one letter a key.
  std::string Check(int count) {
    std::string line;
    for (int i = 0; i < count; ++i) {
      const std::string key = KeptKeyOf(i);
      const Result<std::string> value = store_.Get(key);
      if (value.ok()) {
        line += *value == ValueOf(key, i, 1000) ? '+' : '!';
      } else {
        line += value.code() == ErrorCode::kNotFound ? '-' : '?';
      }
    }
    return line;
  }

  std::string Owners(int count) {
    std::string line;
    for (int i = 0; i < count; ++i) {
      const auto route = store_.QueryRoute(KeptKeyOf(i));
      line += (route.ok() ? route->replicas[0].owner : "nobody") + ' ';
    }
    return line;
  }

  uint64_t BytesOfRoute(const std::string& key) {
    const auto route = store_.QueryRoute(key);
    if (!route.ok()) return 0;
    return allocator::ExtentAllocator::RoundUp(route->size) * route->replicas.size();
  }

  std::string Live() {
    uint64_t bytes = 0;
    for (int i = 0; i < kKeys; ++i) bytes += BytesOfRoute(KeyOf(i)) + BytesOfRoute(KeptKeyOf(i));
    return std::to_string(bytes);
  }

  Store& store_;
  const int threads_;
  const uint64_t seed_;
  runtime::RealRuntime runtime_;
};

}  // namespace

int RunWorker(const std::string& metadata_url, uint64_t segment_bytes, int threads, uint64_t seed) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = metadata_url;
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  config.lease_ttl_ms = kLeaseMs;
  config.request_timeout_ms = kRequestTimeoutMs;
  config.transfer_stall_timeout_ms = kStallTimeoutMs;
  auto store = Store::Open(config);
  if (!store.ok()) {
    std::fprintf(stderr, "worker: %s\n", store.error().ToString().c_str());
    return 1;
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(fdopen(kCommandFd, "r"), std::fclose);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> out(fdopen(kReportFd, "w"), std::fclose);
  if (!in || !out) return 2;
  Worker worker(**store, threads, seed);
  const auto say = [&](const std::string& line) {
    std::fprintf(out.get(), "%s\n", line.c_str());
    std::fflush(out.get());
  };
  say((*store)->NodeName());
  char line[64];
  while (std::fgets(line, sizeof line, in.get()) != nullptr) {
    std::istringstream words(line);
    std::string command;
    uint64_t number = 0;
    words >> command >> number;
    if (command == "quit") break;
    say(worker.Answer(command, number));
  }
  (*store)->Close();
  return 0;
}

}  // namespace mooncake::hammer

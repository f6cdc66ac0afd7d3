// Measures a dummy client next to what it stands in for, in one run, taking turns:
//
//   dummy_bench [rounds] [batches | hot | all] [bytes of a batch's value]
//
//   put, get   128 values (of 64 KiB) in registered memory: the daemon's own node in real mode (in
//              this process), and a client of a daemon (another process) with the same settings
//   exist      128 keys
//   hot        values of 1 MiB that a gateway keeps in its shared hot cache: memcpy of as much,
//              and the client's read, which asks the key's authority (a third process)
//
// Medians of the rounds. Not a test: numbers of a busy machine say nothing.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "bench/cpus.h"
#include "daemon/daemon.h"
#include "mooncake/dummy.h"
#include "mooncake/store.h"
#include "obs/log.h"
#include "runtime/real_runtime.h"

namespace mooncake {
namespace {

constexpr size_t kKeys = 128;
constexpr size_t kMiB = 1 << 20;
constexpr size_t kHotKeys = 16;

StoreConfig NodeConfig(const std::string& folder, uint64_t segment_bytes) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "sqlite://" + folder + "/meta.db";
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  return config;
}

// A process that runs `serve`, which returns what to tell the parent, until the parent ends.
class Child {
 public:
  template <typename Serve>
  explicit Child(Serve serve) {
    int ends[2];
    MC_CHECK(pipe(ends) == 0);
    pid_ = fork();
    MC_CHECK(pid_ >= 0);
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      auto served = serve();
      MC_CHECK(write(ends[1], served.text.data(), served.text.size()) ==
               static_cast<ssize_t>(served.text.size()));
      close(ends[1]);
      for (;;) pause();
    }
    close(ends[1]);
    char text[256];
    const ssize_t got = read(ends[0], text, sizeof(text));
    MC_CHECK(got > 0);
    told_.assign(text, static_cast<size_t>(got));
    close(ends[0]);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  const std::string& told() const { return told_; }

 private:
  pid_t pid_ = -1;
  std::string told_;
};

template <typename Held>
struct Served {
  Held held;
  std::string text;
};

Child StartDaemon(const std::string& folder, const StoreConfig& store) {
  return Child([&] {
    daemon::DaemonConfig config;
    config.store = store;
    config.client_server_address = "127.0.0.1:0";
    config.socket_folder = folder + "/sockets";
    auto daemon = daemon::Daemon::Start(config);
    MC_CHECK(daemon.ok());
    std::string address = (*daemon)->client_address();
    return Served<std::unique_ptr<daemon::Daemon>>{*std::move(daemon), address};
  });
}

// Memory that a daemon can map, as the host allocator of the Python package gives it.
struct Shared {
  explicit Shared(size_t size) : memory(*MappedMemory::MapShared(size, 0, false)) {
    memory.Prepare(0, size);
    std::memset(memory.bytes().data(), 1, size);
  }
  std::optional<SharedRange> Find(const void* data, size_t size) const {
    const MutableBytes all = memory.bytes();
    const auto* at = static_cast<const std::byte*>(data);
    if (at < all.data() || at + size > all.data() + all.size()) return std::nullopt;
    return SharedRange{1, memory.fd(), all.size(), static_cast<uint64_t>(at - all.data())};
  }
  MappedMemory memory;
};

std::unique_ptr<Store> Dummy(const std::string& address, const Shared& shared) {
  DummyConfig config;
  config.server_address = address;
  config.find_shared = [&shared](const void* data, size_t size) { return shared.Find(data, size); };
  auto store = Store::OpenDummy(config);
  if (!store.ok()) fmt::print(stderr, "{}\n", store.error().ToString());
  MC_CHECK(store.ok());
  const MutableBytes all = shared.memory.bytes();
  MC_CHECK((*store)->RegisterBuffer(all.data(), all.size()).ok());
  return *std::move(store);
}

class Samples {
 public:
  template <typename Call>
  void Take(const std::string& name, Call call) {
    const uint64_t start_ns = clock_.NowNs();
    call();
    by_name_[name].push_back(static_cast<double>(clock_.NowNs() - start_ns) / 1'000.0);
  }
  double Median(const std::string& name) {
    std::vector<double>& all = by_name_[name];
    std::nth_element(all.begin(), all.begin() + static_cast<ptrdiff_t>(all.size() / 2), all.end());
    return all[all.size() / 2];
  }

 private:
  runtime::RealRuntime clock_;
  std::map<std::string, std::vector<double>> by_name_;
};

// The batch calls of one store.
struct Batch {
  Batch(Store& store, MutableBytes memory, size_t count, size_t size) : store(store) {
    for (size_t i = 0; i < count; ++i) names.push_back(fmt::format("page-{:032}", i));
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(names[i]);
      parts.push_back(memory.subspan(i * size, size));
      targets.push_back(memory.subspan((count + i) * size, size));
    }
    for (size_t i = 0; i < count; ++i) {
      puts.push_back({keys[i], {&parts[i], 1}});
      gets.push_back({keys[i], {&targets[i], 1}});
    }
  }
  void Put() {
    PutOptions options;
    options.if_absent = true;
    for (const Status& status : store.PutMany(puts, options)) MC_CHECK(status.ok());
  }
  void Get() {
    for (const auto& size : store.GetMany(gets, {})) MC_CHECK(size.ok());
  }
  void GetOne(size_t i) { MC_CHECK(store.GetMany({&gets[i], 1}, {})[0].ok()); }
  void Exist() {
    for (const auto& found : store.ExistMany(keys, {})) MC_CHECK(found.ok());
  }
  void Remove() {
    for (const Status& status : store.RemoveMany(keys, {})) MC_CHECK(status.ok());
  }
  Store& store;
  std::vector<std::string> names;
  std::vector<std::string_view> keys;
  std::vector<ConstBytes> parts;
  std::vector<MutableBytes> targets;
  std::vector<PutItem> puts;
  std::vector<GetItem> gets;
};

void Compare(Samples& samples, const std::string& what, const std::string& of) {
  const double base_us = samples.Median("real " + what);
  const double dummy_us = samples.Median("dummy " + what);
  fmt::print("{:6} {:>9.1f} us {:10} {:>9.1f} us dummy   ratio {:.2f}\n", what, base_us, of,
             dummy_us, base_us / dummy_us);
}

void MeasureBatches(const std::string& address, const std::string& folder, int rounds,
                    size_t value_bytes) {
  auto node = Store::Open(NodeConfig(folder, 64 * kMiB));
  MC_CHECK(node.ok());
  const Shared shared(2 * kKeys * value_bytes);
  auto dummy = Dummy(address, shared);
  const MutableBytes memory = shared.memory.bytes();
  MC_CHECK((*node)->RegisterBuffer(memory.data(), memory.size()).ok());
  std::pair<std::string, Batch> sides[] = {{"real ", Batch(**node, memory, kKeys, value_bytes)},
                                           {"dummy ", Batch(*dummy, memory, kKeys, value_bytes)}};
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    for (auto& [name, batch] : sides) {
      samples.Take(name + "put", [&] { batch.Put(); });
      samples.Take(name + "get", [&] { batch.Get(); });
      samples.Take(name + "exist", [&] { batch.Exist(); });
      batch.Remove();
    }
  }
  for (const char* what : {"put", "get", "exist"}) Compare(samples, what, "real");
}

void MeasureHot(const std::string& address, int rounds) {
  const Shared shared(2 * kHotKeys * kMiB);
  auto dummy = Dummy(address, shared);
  const MutableBytes memory = shared.memory.bytes();
  Batch batch(*dummy, memory, kHotKeys, kMiB);
  batch.Put();
  batch.Get();  // Fills the cache.
  Samples samples;
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < kHotKeys; ++i) {
      samples.Take("real hot",
                   [&] { std::memcpy(batch.targets[i].data(), batch.parts[i].data(), kMiB); });
    }
    for (size_t i = 0; i < kHotKeys; ++i) samples.Take("dummy hot", [&] { batch.GetOne(i); });
    samples.Take("real hot16", [&] {
      for (size_t i = 0; i < kHotKeys; ++i) {
        std::memcpy(batch.targets[i].data(), batch.parts[i].data(), kMiB);
      }
    });
    samples.Take("dummy hot16", [&] { batch.Get(); });
  }
  Compare(samples, "hot", "memcpy");
  Compare(samples, "hot16", "memcpy");
}

void Run(const std::string& folder, int rounds, const std::string& what, size_t value_bytes) {
  for (const char* name : {"/a", "/b", "/c"}) std::filesystem::create_directory(folder + name);
  // All processes before any thread of this one: gRPC does not survive a fork.
  const Child daemon = StartDaemon(folder, NodeConfig(folder + "/a", 64 * kMiB));
  // It stands for another machine, so it and the client that reads do not take turns on one
  // processor. The gateway may run on all, as a daemon does.
  const bench::CpuSplit cpus = bench::CpuSplit::OfThisProcess();
  const Child storage([&] {
    cpus.BindToServers();
    auto node = Store::Open(NodeConfig(folder + "/c", 64 * kMiB));
    MC_CHECK(node.ok());
    return Served<std::unique_ptr<Store>>{*std::move(node), "ready"};
  });
  StoreConfig config = NodeConfig(folder + "/c", 0);
  config.local_hot_cache_size = 64 * kMiB;
  config.local_hot_block_size = 4 * kMiB;
  config.local_hot_cache_use_shm = true;
  const Child gateway = StartDaemon(folder, config);
  if (what != "hot") MeasureBatches(daemon.told(), folder + "/b", rounds, value_bytes);
  if (what == "batches") return;
  cpus.BindToClients();
  MeasureHot(gateway.told(), rounds);
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
  const int rounds =
      argc > 1 ? std::max(1, static_cast<int>(std::strtol(argv[1], nullptr, 10))) : 200;
  const std::string what = argc > 2 ? argv[2] : "all";
  const size_t value_bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 64 << 10;
  mooncake::obs::SetLogLevel(mooncake::obs::LogLevel::kError);
  std::string folder = std::filesystem::temp_directory_path() / "mc-dummy-bench-XXXXXX";
  MC_CHECK(mkdtemp(folder.data()) != nullptr);
  mooncake::Run(folder, rounds, what, value_bytes);
  std::filesystem::remove_all(folder);
  return 0;
}

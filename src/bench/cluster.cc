#include "bench/cluster.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "bench/cpus.h"
#include "bench/raw_server.h"
#include "runtime/real_runtime.h"

extern char** environ;

namespace mooncake::bench {
namespace {

constexpr uint64_t kSegmentBytesMin = 64 << 20;
constexpr uint64_t kSegmentBytesMax = uint64_t{1} << 30;
constexpr int kReadyWaitMs = 30'000;
constexpr uint64_t kEndWaitMs = 10'000;
constexpr uint64_t kEndPollMs = 5;

StoreConfig ConfigFor(const std::string& metadata_url, const std::string& secret) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = metadata_url;
  config.cluster_secret = secret;
  return config;
}

Result<std::string> MakeFolder() {
  std::string path = (std::filesystem::temp_directory_path() / "mooncake-bench-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) {
    return InvalidState(fmt::format("{}: no temporary folder can be made (errno {})", path, errno));
  }
  return path;
}

struct Pipe {
  int read = -1;
  int write = -1;
};
bool MakePipe(Pipe* out) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  *out = {ends[0], ends[1]};
  return true;
}

}  // namespace

uint64_t SegmentBytesFor(uint64_t values, uint64_t value_bytes) {
  const uint64_t each = (value_bytes + 127) / 64 * 64;
  return std::clamp(values * each * 3 / 2, kSegmentBytesMin, kSegmentBytesMax);
}

Result<std::unique_ptr<StorageProcess>> StorageProcess::Start(const ServeOptions& options) {
  auto process = std::make_unique<StorageProcess>();
  MC_RETURN_IF_ERROR(process->Spawn(options));
  MC_RETURN_IF_ERROR(process->AwaitReady());
  return process;
}

Status StorageProcess::Spawn(const ServeOptions& options) {
  Pipe input, output;
  if (!MakePipe(&input) || !MakePipe(&output)) {
    return InvalidState(fmt::format("no pipe can be made (errno {})", errno));
  }
  input_ = input.write;
  output_ = output.read;
  std::string words[] = {"mooncake-store-rs-bench", "serve",
                         fmt::format("--segment-bytes={}", options.segment_bytes)};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  // What may hold a password goes by the environment: everybody can read a command line.
  std::string added[] = {kServeUrl + ("=" + options.metadata_url),
                         kServeSecret + ("=" + options.cluster_secret)};
  std::vector<char*> environment = {added[0].data(), added[1].data()};
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write, STDOUT_FILENO);
  const int error =
      ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(input.read);
  ::close(output.write);
  if (error == 0) return Ok();
  pid_ = -1;
  return InvalidState(fmt::format("no storage process can be started (errno {})", error));
}

Status StorageProcess::AwaitReady() {
  std::string line;
  while (!line.ends_with('\n')) {
    pollfd readable = {output_, POLLIN, 0};
    char c = 0;
    if (::poll(&readable, 1, kReadyWaitMs) <= 0 || ::read(output_, &c, 1) != 1) {
      return InvalidState("the storage process did not become ready; its reason is above");
    }
    line.push_back(c);
  }
  constexpr std::string_view kReady = "ready ";
  uint16_t port = 0;
  const char* const digits = line.data() + kReady.size();
  const bool ready = line.starts_with(kReady);
  if (!ready || std::from_chars(digits, line.data() + line.size(), port).ec != std::errc()) {
    return InvalidState("the storage process said: " + line);
  }
  raw_port_ = port;
  return Ok();
}

StorageProcess::~StorageProcess() {
  if (input_ >= 0) ::close(input_);
  if (output_ >= 0) ::close(output_);
  if (pid_ < 0) return;
  runtime::RealRuntime runtime;
  const uint64_t until_ms = runtime.NowMs() + kEndWaitMs;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (runtime.NowMs() > until_ms) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      return;
    }
    runtime.SleepMs(kEndPollMs);
  }
}

Result<std::unique_ptr<Cluster>> Cluster::Start(const Options& options, uint64_t stored_bytes) {
  auto cluster = std::make_unique<Cluster>();
  MC_RETURN_IF_ERROR(cluster->Open(options, stored_bytes));
  return cluster;
}

Status Cluster::Open(const Options& options, uint64_t stored_bytes) {
  std::string url = options.metadata_url;
  if (url.empty()) {
    MC_TRY(folder_, MakeFolder());
    url = "sqlite://" + folder_ + "/cluster.db";
  }
  const bool remote = options.layout == "remote";
  const uint64_t bytes = options.segment_bytes != 0 ? options.segment_bytes : stored_bytes;
  // One child in any case, for the bare connections that are measured beside the store's.
  const uint32_t storing = remote ? options.storage_processes : 0;
  const CpuSplit cpus = CpuSplit::OfThisProcess();
  if (options.Splits()) cpus.BindToServers();
  for (uint32_t i = 0; i < std::max(storing, 1u); ++i) {
    const uint64_t segment_bytes = i < storing ? bytes : 0;
    MC_TRY(auto process, StorageProcess::Start({url, options.cluster_secret, segment_bytes}));
    processes_.push_back(std::move(process));
  }
  if (options.Splits()) cpus.BindToClients();
  writers_ = options.writers;
  readers_ = options.readers;
  // Where storage is remote, who writes is not who reads.
  const size_t clients = remote ? writers_ + readers_ : std::max(writers_, readers_);
  for (size_t i = 0; i < clients; ++i) {
    StoreConfig config = ConfigFor(url, options.cluster_secret);
    config.global_segment_size = remote ? 0 : bytes;
    config.routed_writes = remote;
    MC_TRY(auto client, Store::Open(config));
    clients_.push_back(std::move(client));
  }
  return Ok();
}

Cluster::~Cluster() {
  clients_.clear();
  processes_.clear();
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

uint64_t Cluster::capacity_bytes() {
  uint64_t bytes = 0;
  for (const SegmentInfo& segment : clients_.front()->ListSegments(true)) {
    bytes += segment.capacity_bytes;
  }
  return bytes;
}

int Serve(const ServeOptions& options) {
  runtime::RealRuntime runtime;
  auto raw = RawServer::Start(runtime);
  if (!raw) {
    fmt::print(stderr, "{}\n", raw.error().ToString());
    return 1;
  }
  std::unique_ptr<Store> store;
  if (options.segment_bytes > 0) {
    StoreConfig config = ConfigFor(options.metadata_url, options.cluster_secret);
    config.global_segment_size = options.segment_bytes;
    config.routed_writes = true;
    auto opened = Store::Open(config);
    if (!opened) {
      fmt::print(stderr, "{}\n", opened.error().ToString());
      return 1;
    }
    store = *std::move(opened);
  }
  fmt::print("ready {}\n", (*raw)->port());
  std::fflush(stdout);
  char ignored[64];
  while (::read(STDIN_FILENO, ignored, sizeof ignored) > 0) {
  }
  return 0;
}

}  // namespace mooncake::bench

#include "daemon_fixture.h"

#include <unistd.h>

namespace mooncake {

MutableBytes HostMemory::Alloc(uint64_t size) {
  auto memory = MappedMemory::MapShared(size, 0, false);
  EXPECT_TRUE(memory.ok());
  base::MutexLock lock(mu_);
  const MutableBytes bytes = memory->bytes();
  by_base_[bytes.data()] = {*std::move(memory), ++last_id_};
  return bytes;
}

void HostMemory::Free(const void* data) {
  base::MutexLock lock(mu_);
  by_base_.erase(static_cast<const std::byte*>(data));
}

std::optional<SharedRange> HostMemory::Find(const void* data, size_t size) {
  const auto* at = static_cast<const std::byte*>(data);
  base::MutexLock lock(mu_);
  auto found = by_base_.upper_bound(at);
  if (found == by_base_.begin()) return std::nullopt;
  --found;
  const uint64_t whole = found->second.memory.bytes().size();
  const auto offset = static_cast<uint64_t>(at - found->first);
  if (offset >= whole || size > whole - offset) return std::nullopt;
  return SharedRange{found->second.id, found->second.memory.fd(), whole, offset};
}

std::string ValueOf(const std::string& key, size_t size, int version) {
  std::string value(size, '\0');
  uint64_t state = std::hash<std::string>{}(key) + static_cast<uint64_t>(version);
  for (char& byte : value) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56);
  }
  return value;
}

StoreConfig NodeConfigFor(const std::string& cluster, uint64_t segment_bytes) {
  StoreConfig config;
  config.local_hostname = "127.0.0.1";
  config.metadata_url = "memory://" + cluster;
  config.global_segment_size = segment_bytes;
  config.routed_writes = true;
  config.request_timeout_ms = 10'000;
  config.transfer_stall_timeout_ms = 2'000;
  return config;
}

void DaemonTest::SetUp() {
  config_.client_server_address = "127.0.0.1:0";
  config_.socket_folder = testing::TempDir() + "mc-daemon-" + std::to_string(getpid());
}

void DaemonTest::StartDaemon(const std::string& cluster) {
  if (config_.store.metadata_url.empty()) config_.store = NodeConfigFor(cluster, 64 * kMiB);
  auto daemon = daemon::Daemon::Start(config_);
  ASSERT_TRUE(daemon.ok()) << daemon.error().ToString();
  daemon_ = *std::move(daemon);
  config_.client_server_address = daemon_->client_address();  // For a restart.
}

DummyConfig DaemonTest::ClientConfig() {
  DummyConfig config;
  config.server_address = config_.client_server_address;
  config.rpc_timeout_ms = 20'000;
  config.connect_timeout_ms = 5'000;
  config.find_shared = [this](const void* data, size_t size) { return memory_.Find(data, size); };
  return config;
}

std::unique_ptr<Store> DaemonTest::Client(const DummyConfig& config) {
  auto store = Store::OpenDummy(config);
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return store.ok() ? *std::move(store) : nullptr;
}

std::unique_ptr<Store> DaemonTest::Node(const std::string& cluster) {
  auto store = Store::Open(NodeConfigFor(cluster, 64 * kMiB));
  EXPECT_TRUE(store.ok()) << (store.ok() ? "" : store.error().ToString());
  return store.ok() ? *std::move(store) : nullptr;
}

uint64_t DaemonTest::Count(const std::string& name, const std::string& label) {
  daemon_->sessions().RefreshGauges();
  const std::string text = daemon_->store().MetricsText();
  size_t at = 0;
  while ((at = text.find("mooncake_store_" + name + "{", at)) != std::string::npos) {
    const size_t end = text.find('\n', at);
    const std::string line = text.substr(at, end - at);
    if (line.find("\"" + label + "\"") != std::string::npos) {
      return std::stoull(line.substr(line.rfind(' ')));
    }
    at = end;
  }
  return 0;
}

}  // namespace mooncake

// A daemon in this process, its clients, and memory that both can map.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "daemon/daemon.h"
#include "mooncake/dummy.h"
#include "mooncake/store.h"

namespace mooncake {

inline constexpr uint64_t kMiB = 1 << 20;

// Stands in for the host allocator of the Python package.
class HostMemory {
 public:
  MutableBytes Alloc(uint64_t size);
  void Free(const void* data);
  std::optional<SharedRange> Find(const void* data, size_t size);

 private:
  struct Allocation {
    MappedMemory memory;
    uint64_t id = 0;
  };
  base::Mutex mu_;
  std::map<const std::byte*, Allocation> by_base_;
  uint64_t last_id_ = 0;
};

std::string ValueOf(const std::string& key, size_t size, int version = 0);
StoreConfig NodeConfigFor(const std::string& cluster, uint64_t segment_bytes);

class DaemonTest : public testing::Test {
 protected:
  void SetUp() override;

  // The configuration that the next StartDaemon uses.
  void StartDaemon(const std::string& cluster);
  DummyConfig ClientConfig();
  std::unique_ptr<Store> Client() { return Client(ClientConfig()); }
  std::unique_ptr<Store> Client(const DummyConfig& config);
  std::unique_ptr<Store> Node(const std::string& cluster);
  // The value of a counter of the daemon, with that label; 0: it has none.
  uint64_t Count(const std::string& name, const std::string& label);

  daemon::DaemonConfig config_;
  HostMemory memory_;
  std::unique_ptr<daemon::Daemon> daemon_;
};

}  // namespace mooncake

// MetadataStore in the memory of one process: memory://NAME, tests and simulation.
//
// The state is an object of its own that the handles share, as clients of one service would. It
// is passed in; nothing is global. Every call is short, sleeps nowhere and cannot fail.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.h"
#include "metadata/table_store.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

// One cluster's metadata. Thread-safe.
class MemoryState {
 public:
  MemoryState();
  ~MemoryState();

  // Runs `body` on the tables, alone.
  void Run(const std::function<void(LeaseTable& table)>& body);
  // Loses everything, as a service does that restarts without its data.
  void Forget();

 private:
  class Table;

  base::Mutex mu_;
  std::unique_ptr<Table> table_ MC_GUARDED_BY(mu_);
};

// The states of a process by name and keyspace. Thread-safe.
class MemoryRegistry {
 public:
  // The same state for the same names, for as long as the registry lives.
  std::shared_ptr<MemoryState> Find(const std::string& name, const std::string& keyspace);

 private:
  base::Mutex mu_;
  std::map<std::pair<std::string, std::string>, std::shared_ptr<MemoryState>> states_
      MC_GUARDED_BY(mu_);
};

class MemoryMetadata final : public TableStore {
 public:
  // `url` is memory://NAME. kInvalidArgument otherwise. `runtime` outlives the store; its
  // monotonic clock expires the leases.
  static Result<std::unique_ptr<MetadataStore>> Open(std::string_view url,
                                                     const std::string& keyspace,
                                                     MemoryRegistry& registry, Runtime& runtime);

  MemoryMetadata(std::shared_ptr<MemoryState> state, Runtime& runtime);

 private:
  Status Transact(Access access, const Body& body) override;

  const std::shared_ptr<MemoryState> state_;
  Runtime& runtime_;
};

}  // namespace mooncake::metadata

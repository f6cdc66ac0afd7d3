// MetadataStore in a file, sqlite:///absolute/path.db: any number of processes on one host, and
// no server. The clock that expires leases is the host's wall clock.
//
// Thread-safe: one connection, used by one caller at a time. Calls wait at most the busy timeout
// for other processes. When the file is deleted or replaced underneath, the next call goes on
// with what the path names then, as with a service that comes back empty. After fork the child's
// calls are kInvalidState and leave the parent's connection alone.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "metadata/sqlite/sqlite_connection.h"
#include "metadata/table_store.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

struct SqliteOptions {
  std::string keyspace;
  uint64_t busy_timeout_ms = 3'000;
};

class SqliteMetadata final : public TableStore {
 public:
  // Creates the file and its folder. kInvalidArgument: not such a URL. `runtime` outlives it.
  // A file that others keep locked is opened by the first call that finds it unlocked.
  static Result<std::unique_ptr<MetadataStore>> Open(std::string_view url, SqliteOptions options,
                                                     Runtime& runtime);
  SqliteMetadata(std::string path, SqliteOptions options, Runtime& runtime);
  ~SqliteMetadata() override;

  void EndBy(uint64_t deadline_ms) override;

 private:
  Status Transact(Access access, const Body& body) override;
  Status TryLocked(Access access, const Body& body) MC_REQUIRES(mu_);
  Status ReopenLocked() MC_REQUIRES(mu_);

  const std::string path_;
  const SqliteOptions options_;
  Runtime& runtime_;
  const pid_t pid_;
  SqliteConnection::BusyLimit busy_limit_ms_;
  base::Mutex mu_;
  std::unique_ptr<SqliteConnection> connection_ MC_GUARDED_BY(mu_);  // Null: to be opened.
};

}  // namespace mooncake::metadata

#include "metadata/sqlite/sqlite_metadata.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "metadata/sqlite/sqlite_table.h"

namespace mooncake::metadata {

Result<std::unique_ptr<MetadataStore>> SqliteMetadata::Open(std::string_view url,
                                                            SqliteOptions options,
                                                            Runtime& runtime) {
  constexpr std::string_view kScheme = "sqlite://";
  std::string path;
  if (url.starts_with(kScheme)) path = url.substr(kScheme.size());
  if (path.size() < 2 || path.front() != '/' || path.back() == '/') {
    return InvalidArgument(
        fmt::format("metadata_url is '{}', allowed is sqlite:///absolute/path.db", url));
  }
  auto store = std::make_unique<SqliteMetadata>(std::move(path), std::move(options), runtime);
  {
    base::MutexLock lock(store->mu_);
    const Status opened = store->ReopenLocked();
    // Not for ever: the first call that needs it tries again.
    const bool locked = !opened.ok() && opened.error().reason == ErrorReason::kTimeout;
    if (!opened.ok() && !locked) return opened.error();
  }
  return std::unique_ptr<MetadataStore>(std::move(store));
}

SqliteMetadata::SqliteMetadata(std::string path, SqliteOptions options, Runtime& runtime)
    : path_(std::move(path)),
      options_(std::move(options)),
      runtime_(runtime),
      pid_(getpid()),
      busy_limit_ms_(options_.busy_timeout_ms) {}

SqliteMetadata::~SqliteMetadata() {
  if (getpid() != pid_ && connection_ != nullptr) connection_->Abandon();
}

void SqliteMetadata::EndBy(uint64_t deadline_ms) {
  const uint64_t now_ms = runtime_.NowMs();
  busy_limit_ms_ = std::min(options_.busy_timeout_ms, std::max(deadline_ms, now_ms) - now_ms);
}

Status SqliteMetadata::Transact(Access access, const Body& body) {
  // Before the lock: a thread that does not exist in the child may have held it at the fork.
  if (getpid() != pid_) {
    return InvalidState(fmt::format(
        "the metadata store was opened by process {} before a fork; set up a new one", pid_));
  }
  base::MutexLock lock(mu_);
  if (connection_ == nullptr || !connection_->FileUnmoved()) MC_RETURN_IF_ERROR(ReopenLocked());
  Status done = TryLocked(access, body);
  if (done.ok() || !connection_->WorthReopening()) return done;
  MC_RETURN_IF_ERROR(ReopenLocked());
  return TryLocked(access, body);
}

Status SqliteMetadata::TryLocked(Access access, const Body& body) {
  SqliteConnection& connection = *connection_;
  connection.ClearError();
  connection.Exec(access == Access::kRead ? "BEGIN" : "BEGIN IMMEDIATE");
  if (!connection.failed()) {
    SqliteTable table(connection, options_.keyspace);
    body(table, runtime_.WallMs());
    connection.Exec("COMMIT");
  }
  Status status = connection.Error();
  if (!status.ok()) connection.Rollback();
  return status;
}

Status SqliteMetadata::ReopenLocked() {
  if (connection_ != nullptr && !connection_->FileUnmoved()) connection_->RemoveStaleLog();
  connection_.reset();
  MC_TRY(connection_, SqliteConnection::Open(path_, busy_limit_ms_));
  return Ok();
}

}  // namespace mooncake::metadata

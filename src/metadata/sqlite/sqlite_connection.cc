#include "metadata/sqlite/sqlite_connection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <utility>

namespace mooncake::metadata {
namespace {

constexpr uint64_t kRetryMs = 5;

constexpr const char* kSchema = R"sql(
CREATE TABLE IF NOT EXISTS meta (
  keyspace TEXT PRIMARY KEY, revision INTEGER NOT NULL, floor INTEGER NOT NULL,
  document_version INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS leases (
  keyspace TEXT, stable_id TEXT, epoch INTEGER, core TEXT NOT NULL, usage TEXT NOT NULL,
  suspect INTEGER NOT NULL, expires_ms INTEGER NOT NULL, changed INTEGER NOT NULL,
  PRIMARY KEY (keyspace, stable_id, epoch)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epoch_marks (
  keyspace TEXT, stable_id TEXT, epoch INTEGER NOT NULL, seen_ms INTEGER NOT NULL,
  PRIMARY KEY (keyspace, stable_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gone (
  keyspace TEXT, revision INTEGER, stable_id TEXT NOT NULL, epoch INTEGER NOT NULL,
  PRIMARY KEY (keyspace, revision)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS policies (
  keyspace TEXT PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
  keyspace TEXT, name TEXT, version INTEGER NOT NULL, text TEXT NOT NULL,
  PRIMARY KEY (keyspace, name)) WITHOUT ROWID;
)sql";

// Held while a process looks at the files and opens them, so that no other one removes a log
// that has just been made. On the folder, as every other file may vanish.
class FolderLock {
 public:
  // Gives up after the time and goes on without: a stopped process must not stop all others.
  FolderLock(const std::string& folder, const SqliteConnection::BusyLimit& limit_ms)
      : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    for (uint64_t i = 0; fd_ >= 0 && i <= limit_ms / kRetryMs; ++i) {
      if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
      sqlite3_sleep(kRetryMs);
    }
  }
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int fd_;
};

bool Exists(const std::string& path) {
  struct stat unused;
  return stat(path.c_str(), &unused) == 0;
}

}  // namespace

SqliteConnection::SqliteConnection(std::string path, const BusyLimit& busy_limit_ms)
    : path_(std::move(path)), busy_limit_ms_(busy_limit_ms) {}

SqliteConnection::~SqliteConnection() {
  if (db_ != nullptr) sqlite3_close_v2(db_);
}

Result<std::unique_ptr<SqliteConnection>> SqliteConnection::Open(const std::string& path,
                                                                 const BusyLimit& busy_limit_ms) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return MetadataError(
        fmt::format("sqlite: cannot create the folder {}: {}", folder.string(), error.message()));
  }
  const FolderLock lock(folder.string(), busy_limit_ms);
  if (!Exists(path)) {  // A log without its database belongs to one that was deleted.
    unlink((path + "-wal").c_str());
    unlink((path + "-shm").c_str());
  }
  auto connection = std::make_unique<SqliteConnection>(path, busy_limit_ms);
  connection->Connect();
  if (connection->failed()) return connection->Error().error();
  return connection;
}

void SqliteConnection::Connect() {
  const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX;
  NoteFailure(sqlite3_open_v2(path_.c_str(), &db_, flags, nullptr));
  if (failed()) return;
  UseWriteAheadLog();
  sqlite3_busy_handler(db_, OnBusy, this);
  // A lost last commit after a power failure is harmless: every lease has lapsed by then.
  Exec("PRAGMA synchronous=NORMAL");
  Exec("BEGIN IMMEDIATE");
  Exec(kSchema);
  Exec("COMMIT");
  file_ = IdOf(path_);
  log_ = IdOf(path_ + "-wal");
  index_ = IdOf(path_ + "-shm");
}

// By the number of pauses, as SQLite asks again after each.
int SqliteConnection::OnBusy(void* connection, int count) {
  const auto& self = *static_cast<SqliteConnection*>(connection);
  if (static_cast<uint64_t>(count) >= self.busy_limit_ms_ / kRetryMs) return 0;
  sqlite3_sleep(kRetryMs);
  return 1;
}

void SqliteConnection::UseWriteAheadLog() {
  // The change of mode waits as statements do in some states of the file only, so it is repeated
  // here, without a busy handler whose time would come on top each time.
  for (uint64_t i = 0; i <= busy_limit_ms_ / kRetryMs; ++i) {
    ClearError();
    Exec("PRAGMA journal_mode=WAL");
    if (code_ != SQLITE_BUSY && code_ != SQLITE_LOCKED) return;
    sqlite3_sleep(kRetryMs);
  }
}

SqliteConnection::FileId SqliteConnection::IdOf(const std::string& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return {};
  return {found.st_dev, found.st_ino};
}

bool SqliteConnection::FileUnmoved() const { return IdOf(path_) == file_; }

void SqliteConnection::RemoveStaleLog() const {
  const FolderLock lock(std::filesystem::path(path_).parent_path().string(), busy_limit_ms_);
  if (log_.inode != 0 && IdOf(path_ + "-wal") == log_) unlink((path_ + "-wal").c_str());
  if (index_.inode != 0 && IdOf(path_ + "-shm") == index_) unlink((path_ + "-shm").c_str());
}

void SqliteConnection::NoteFailure(int code) {
  if (code == SQLITE_OK || code == SQLITE_ROW || code == SQLITE_DONE || failed()) return;
  code_ = code & 0xff;
  message_ = db_ == nullptr ? sqlite3_errstr(code) : sqlite3_errmsg(db_);
}

void SqliteConnection::Exec(const char* sql) {
  if (!failed()) NoteFailure(sqlite3_exec(db_, sql, nullptr, nullptr, nullptr));
}

void SqliteConnection::Rollback() {
  if (sqlite3_get_autocommit(db_) == 0) {
    sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  }
}

bool SqliteConnection::WorthReopening() const {
  switch (code_) {
    case SQLITE_CANTOPEN:
    case SQLITE_CORRUPT:
    case SQLITE_IOERR:
    case SQLITE_NOTADB:
    case SQLITE_PROTOCOL:
    case SQLITE_READONLY:  // Also: the file was moved away.
    case SQLITE_ERROR:     // Also: the tables are gone.
      return true;
    default: return false;
  }
}

Status SqliteConnection::Error() const {
  if (!failed()) return Ok();
  if (code_ == SQLITE_BUSY || code_ == SQLITE_LOCKED) {
    mooncake::Error locked = MetadataError(
        fmt::format("sqlite: {} stayed locked for {} ms", path_, busy_limit_ms_.load()));
    locked.reason = ErrorReason::kTimeout;
    return locked;
  }
  const bool damaged = code_ == SQLITE_CORRUPT || code_ == SQLITE_NOTADB;
  return MetadataError(fmt::format("sqlite: {}: {}{}", path_, message_,
                                   damaged ? "; once it is deleted, the nodes write it anew" : ""));
}

SqliteStatement::SqliteStatement(SqliteConnection& connection, const char* sql)
    : connection_(connection) {
  if (connection_.failed()) return;
  connection_.NoteFailure(sqlite3_prepare_v2(connection_.db_, sql, -1, &statement_, nullptr));
}

SqliteStatement::~SqliteStatement() { sqlite3_finalize(statement_); }

SqliteStatement& SqliteStatement::Bind(std::string_view text) {
  if (connection_.failed()) return *this;
  // A null pointer would bind NULL.
  const char* data = text.data() == nullptr ? "" : text.data();
  connection_.NoteFailure(sqlite3_bind_text(statement_, ++bound_, data,
                                            static_cast<int>(text.size()), SQLITE_TRANSIENT));
  return *this;
}

SqliteStatement& SqliteStatement::Bind(uint64_t number) {
  if (connection_.failed()) return *this;
  const uint64_t largest = std::numeric_limits<int64_t>::max();
  const auto value = static_cast<int64_t>(std::min(number, largest));
  connection_.NoteFailure(sqlite3_bind_int64(statement_, ++bound_, value));
  return *this;
}

bool SqliteStatement::Step() {
  if (connection_.failed()) return false;
  const int code = sqlite3_step(statement_);
  connection_.NoteFailure(code);
  return code == SQLITE_ROW;
}

std::string SqliteStatement::Text(int column) const {
  const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column));
  const int size = sqlite3_column_bytes(statement_, column);
  return text == nullptr ? std::string() : std::string(text, static_cast<size_t>(size));
}

uint64_t SqliteStatement::Number(int column) const {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_, column));
}

}  // namespace mooncake::metadata

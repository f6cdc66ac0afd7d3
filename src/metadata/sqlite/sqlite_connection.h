// One connection to a database file, and one statement of it. Errors are sticky: the first one
// since ClearError is kept, and later steps do nothing, so a transaction is written as a plain
// sequence and checked once, before it commits.
//
// Used by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "mooncake/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace mooncake::metadata {

class SqliteConnection {
 public:
  // How long to wait for other processes; it may move while somebody waits.
  using BusyLimit = std::atomic<uint64_t>;

  // Opens or creates the file, its folder and its tables. Many processes may do so at once.
  // `busy_limit_ms` outlives the connection.
  static Result<std::unique_ptr<SqliteConnection>> Open(const std::string& path,
                                                        const BusyLimit& busy_limit_ms);
  SqliteConnection(std::string path, const BusyLimit& busy_limit_ms);  // Not connected: see Open.
  ~SqliteConnection();
  SqliteConnection(const SqliteConnection&) = delete;
  SqliteConnection& operator=(const SqliteConnection&) = delete;

  // Whether the path still names the file that this connection has open.
  bool FileUnmoved() const;
  // Removes the write-ahead log that belongs to the file of this connection, once another file
  // has taken its place: SQLite would read that file through the log of the old one.
  void RemoveStaleLog() const;

  void Exec(const char* sql);
  // Ends a failed transaction, if one is open, and keeps the error.
  void Rollback();
  // After an error: whether a fresh connection may do better (damaged or vanished file).
  bool WorthReopening() const;
  bool failed() const { return code_ != 0; }
  Status Error() const;
  void ClearError() { code_ = 0; }

  // After fork: forgets the handle instead of closing it. Closing would touch the files and the
  // locks of the parent.
  void Abandon() { db_ = nullptr; }

 private:
  friend class SqliteStatement;
  struct FileId {
    uint64_t device = 0;
    uint64_t inode = 0;
    bool operator==(const FileId&) const = default;
  };

  static FileId IdOf(const std::string& path);
  void Connect();
  void UseWriteAheadLog();
  void NoteFailure(int code);
  static int OnBusy(void* connection, int count);

  const std::string path_;
  const BusyLimit& busy_limit_ms_;
  sqlite3* db_ = nullptr;
  FileId file_, log_, index_;  // Of the database, its -wal and its -shm.
  int code_ = 0;
  std::string message_;
};

// Prepares, binds and steps; finalises on destruction.
class SqliteStatement {
 public:
  SqliteStatement(SqliteConnection& connection, const char* sql);
  ~SqliteStatement();
  SqliteStatement(const SqliteStatement&) = delete;
  SqliteStatement& operator=(const SqliteStatement&) = delete;

  // Binds the next parameter. Text is copied.
  SqliteStatement& Bind(std::string_view text);
  SqliteStatement& Bind(uint64_t number);
  // True: there is a row. False: the end, or an error.
  bool Step();
  void Run() { Step(); }

  std::string Text(int column) const;
  uint64_t Number(int column) const;

 private:
  SqliteConnection& connection_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

}  // namespace mooncake::metadata

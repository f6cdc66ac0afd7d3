// One connection to a Redis server, authenticated and in its database. Used by one thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "metadata/net/stream.h"
#include "metadata/redis/redis_url.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

struct redisReader;  // NOLINT(readability-identifier-naming): hiredis's name.

namespace mooncake::metadata {

struct RedisTimeouts {
  uint64_t connect_ms = 3'000;
  uint64_t io_ms = 3'000;  // For one exchange, however the server spreads its answer.
};

// An answer, flat: the scripts answer with one list of strings.
struct RedisAnswer {
  bool is_error = false;
  std::vector<std::string> items;  // One item for anything but a list.
};

struct FreeRedisReader {
  void operator()(redisReader* reader) const;
};

// hiredis parses the answers; the bytes come and go through a Stream.
class RedisConnection {
 public:
  // `end_by_ms`: as of Stream. It and `address` outlive the connection.
  RedisConnection(const RedisAddress& address, RedisTimeouts timeouts,
                  const std::atomic<uint64_t>& end_by_ms, Runtime& runtime);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Connects, authenticates and selects the database. kMetadata names the server, never the
  // credentials.
  Status Connect();
  // One exchange. An error that the server states is an answer; only a connection that failed,
  // and is of no use any more, is an error. kTransport: the process was interrupted.
  Result<RedisAnswer> Exchange(const std::vector<std::string>& arguments);
  // As of Stream.
  bool broken() const { return stream_.broken(); }
  bool Idle() const { return stream_.Idle(); }
  // Connect failed because of the user, the password or the database.
  bool denied() const { return denied_; }

 private:
  Status Authenticate();
  Status Select();
  Error Refused(std::string_view why) const;

  const RedisAddress& address_;
  const RedisTimeouts timeouts_;
  Runtime& runtime_;
  Stream stream_;
  bool denied_ = false;
  const std::unique_ptr<redisReader, FreeRedisReader> reader_;
};

// Whether an error answer says that the user or the password is wrong, or may not do this.
bool IsRedisDenial(const std::string& text);
// The first word of an error answer ("NOAUTH"); servers put what they like behind it.
std::string RedisErrorName(const std::string& text);

}  // namespace mooncake::metadata

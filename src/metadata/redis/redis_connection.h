// One connection to a Redis server, authenticated and in its database. Used by one thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "metadata/redis/redis_url.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

struct redisContext;  // NOLINT(readability-identifier-naming): hiredis's name.

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

class RedisConnection {
 public:
  RedisConnection(const RedisAddress& address, RedisTimeouts timeouts, Runtime& runtime);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Connects, authenticates and selects the database. kMetadata names the server, never the
  // credentials.
  Status Connect();
  // One exchange. An error that the server states is an answer; only a connection that failed,
  // and is of no use any more, is an error. kTransport: the process was interrupted.
  Result<RedisAnswer> Exchange(const std::vector<std::string>& arguments);
  // After an error: the other side closed the connection, so another one may do. False for a
  // server that is silent or refuses: the next one would cost as much and do no better.
  bool broken() const { return broken_; }
  // Whether an idle connection still looks usable, without asking the server.
  bool Idle() const;

 private:
  Status Authenticate();
  Status Select();
  Status Send(const std::vector<std::string>& arguments, uint64_t deadline_ms);
  Status Wait(short events, uint64_t deadline_ms);
  Error Fail(bool broken, std::string why);

  const RedisAddress& address_;
  const RedisTimeouts timeouts_;
  Runtime& runtime_;
  redisContext* context_ = nullptr;
  bool broken_ = false;
};

// The first word of an error answer ("NOAUTH"); servers put what they like behind it.
std::string RedisErrorName(const std::string& text);

}  // namespace mooncake::metadata

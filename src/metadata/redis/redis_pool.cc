#include "metadata/redis/redis_pool.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "metadata/redis/redis_script.h"

namespace mooncake::metadata {
namespace {

constexpr size_t kIdleMax = 8;
// Several, as a server that is cut off again and again (a proxy's rolling restart) breaks more
// than one connection in a row. The pauses double up to the longest.
constexpr int kTriesMax = 10;
constexpr uint64_t kPauseMsMax = 64;
constexpr size_t kErrorBytesMax = 200;

// A server's text may go to a terminal.
std::string Printable(const std::string& text) {
  std::string printable = text.substr(0, kErrorBytesMax);
  for (char& c : printable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return printable;
}

}  // namespace

RedisPool::RedisPool(RedisAddress address, RedisTimeouts timeouts, Runtime& runtime)
    : address_(std::move(address)), timeouts_(timeouts), runtime_(runtime), pid_(getpid()) {}

Result<std::vector<std::string>> RedisPool::RunScript(const std::string& key,
                                                      const std::vector<std::string>& arguments) {
  // Before the lock: a thread that does not exist in the child may have held it at the fork.
  if (getpid() != pid_) {
    return InvalidState(fmt::format(
        "the metadata store was opened by process {} before a fork; set up a new one", pid_));
  }
  const uint64_t deadline_ms = runtime_.NowMs() + timeouts_.connect_ms + timeouts_.io_ms;
  bool again = true;
  Result<RedisAnswer> answer = RedisAnswer{};
  for (int i = 0; i < kTriesMax && again; ++i) {
    if (i > 1) runtime_.SleepMs(std::min(uint64_t{1} << i, kPauseMsMax));
    if (i > 1 && runtime_.NowMs() >= std::min(deadline_ms, end_by_ms_.load())) break;
    answer = Try(key, arguments, again);
  }
  if (!answer) return answer.error();
  if (!answer->is_error) return std::move(answer->items);
  return MetadataError(fmt::format("{}: {}", address_.ToString(), Printable(answer->items[0])));
}

Result<RedisAnswer> RedisPool::Try(const std::string& key,
                                   const std::vector<std::string>& arguments, bool& again) {
  std::unique_ptr<RedisConnection> connection = TakeIdle();
  if (connection == nullptr) {
    connection = std::make_unique<RedisConnection>(address_, timeouts_, end_by_ms_, runtime_);
    Status connected = connection->Connect();
    again = connection->broken();
    denied_.store(connection->denied(), std::memory_order_relaxed);
    if (!connected.ok()) return connected.error();
  }
  Result<RedisAnswer> answer = Evaluate(*connection, key, arguments);
  again = !answer.ok() && connection->broken();
  const bool denied = answer.ok() && answer->is_error && IsRedisDenial(answer->items[0]);
  denied_.store(denied, std::memory_order_relaxed);
  // After an error answer the connection goes: after a failover it may lead to a server that is
  // no master any more.
  if (answer.ok() && !answer->is_error) GiveBack(std::move(connection));
  return answer;
}

std::unique_ptr<RedisConnection> RedisPool::TakeIdle() {
  for (size_t i = 0; i <= kIdleMax; ++i) {  // Each round takes one away.
    std::unique_ptr<RedisConnection> connection;
    {
      base::MutexLock lock(mu_);
      if (idle_.empty()) return nullptr;
      connection = std::move(idle_.back());
      idle_.pop_back();
    }
    if (connection->Idle()) return connection;
  }
  return nullptr;
}

void RedisPool::GiveBack(std::unique_ptr<RedisConnection> connection) {
  base::MutexLock lock(mu_);
  if (idle_.size() < kIdleMax) idle_.push_back(std::move(connection));
}

Result<std::string> RedisPool::ScriptHash(RedisConnection& connection) {
  {
    base::MutexLock lock(mu_);
    if (!script_hash_.empty()) return script_hash_;
  }
  MC_TRY(const RedisAnswer answer, connection.Exchange({"SCRIPT", "LOAD", kRedisScript}));
  if (answer.is_error) return std::string();  // EVAL may be allowed where SCRIPT is not.
  base::MutexLock lock(mu_);
  script_hash_ = answer.items[0];
  return script_hash_;
}

Result<RedisAnswer> RedisPool::Evaluate(RedisConnection& connection, const std::string& key,
                                        const std::vector<std::string>& arguments) {
  MC_TRY(const std::string hash, ScriptHash(connection));
  std::vector<std::string> command = {"EVALSHA", hash, "1", key};
  command.insert(command.end(), arguments.begin(), arguments.end());
  if (!hash.empty()) {
    MC_TRY(RedisAnswer answer, connection.Exchange(command));
    if (!answer.is_error || RedisErrorName(answer.items[0]) != "NOSCRIPT") return answer;
  }
  command[0] = "EVAL";
  command[1] = kRedisScript;
  return connection.Exchange(command);
}

}  // namespace mooncake::metadata

#include "metadata/redis/redis_connection.h"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mooncake::metadata {
namespace {

// How long a wait goes on before it asks whether the process was interrupted.
constexpr uint64_t kInterruptCheckMs = 100;
constexpr size_t kErrorNameBytesMax = 32;
// hiredis reads 16 KiB at a time, so this is up to 1 GiB.
constexpr size_t kReadsMax = size_t{1} << 16;

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

timeval ToTimeval(uint64_t ms) {
  return {.tv_sec = static_cast<time_t>(ms / 1000),
          .tv_usec = static_cast<suseconds_t>(ms % 1000 * 1000)};
}

std::string ItemOf(const redisReply& reply) {
  switch (reply.type) {
    case REDIS_REPLY_INTEGER: return std::to_string(reply.integer);
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR: return std::string(reply.str, static_cast<size_t>(reply.len));
    default: return {};
  }
}

RedisAnswer AnswerOf(const redisReply& reply) {
  RedisAnswer answer;
  answer.is_error = reply.type == REDIS_REPLY_ERROR;
  if (reply.type != REDIS_REPLY_ARRAY) {
    answer.items.push_back(ItemOf(reply));
    return answer;
  }
  answer.items.reserve(reply.elements);
  for (size_t i = 0; i < reply.elements; ++i) answer.items.push_back(ItemOf(*reply.element[i]));
  return answer;
}

}  // namespace

std::string RedisErrorName(const std::string& text) {
  size_t size = 0;
  while (size < text.size() && size < kErrorNameBytesMax && text[size] >= 'A' &&
         text[size] <= 'Z') {
    ++size;
  }
  return size == 0 ? "an error" : text.substr(0, size);
}

RedisConnection::RedisConnection(const RedisAddress& address, RedisTimeouts timeouts,
                                 Runtime& runtime)
    : address_(address), timeouts_(timeouts), runtime_(runtime) {}

RedisConnection::~RedisConnection() {
  if (context_ != nullptr) redisFree(context_);
}

Error RedisConnection::Fail(bool broken, std::string why) {
  broken_ = broken;
  return MetadataError(fmt::format("{}: {}", address_.ToString(), why));
}

Status RedisConnection::Connect() {
  context_ = redisConnectWithTimeout(address_.host.c_str(), address_.port,
                                     ToTimeval(timeouts_.connect_ms));
  if (context_ == nullptr) return Fail(false, "out of memory");
  if (context_->err != 0) {
    const bool interrupted = context_->err == REDIS_ERR_IO && errno == EINTR;
    return Fail(interrupted, fmt::format("cannot connect: {}", context_->errstr));
  }
  fcntl(context_->fd, F_SETFD, FD_CLOEXEC);
  redisEnableKeepAlive(context_);
  MC_RETURN_IF_ERROR(Authenticate());
  return Select();
}

Status RedisConnection::Authenticate() {
  if (address_.password.empty() && address_.username.empty()) return Ok();
  std::vector<std::string> command = {"AUTH", address_.password};
  if (!address_.username.empty()) command.insert(command.begin() + 1, address_.username);
  MC_TRY(RedisAnswer answer, Exchange(command));
  // Redis before version 6 knows no users: it refuses the number of arguments. A newer one that
  // refuses a user does not say ERR, and must not let it in as another.
  if (answer.is_error && command.size() == 3 && RedisErrorName(answer.items[0]) == "ERR") {
    MC_TRY(RedisAnswer second, Exchange({"AUTH", address_.password}));
    if (!second.is_error) answer = std::move(second);
  }
  if (!answer.is_error) return Ok();
  // Only the error's name: a server may repeat the arguments in what follows.
  return Fail(false, fmt::format("the server refused the {}: {}",
                                 address_.username.empty() ? "password" : "user and password",
                                 RedisErrorName(answer.items[0])));
}

Status RedisConnection::Select() {
  if (address_.db == 0) return Ok();
  MC_TRY(const RedisAnswer answer, Exchange({"SELECT", std::to_string(address_.db)}));
  if (!answer.is_error) return Ok();
  return Fail(false, fmt::format("the server refused the database: {}", answer.items[0]));
}

Status RedisConnection::Wait(short events, uint64_t deadline_ms) {
  pollfd waited{.fd = context_->fd, .events = events, .revents = 0};
  for (uint64_t now = runtime_.NowMs(); now < deadline_ms; now = runtime_.NowMs()) {
    if (runtime_.Interrupted()) {
      broken_ = false;
      return TransportError(fmt::format("{}: interrupted", address_.ToString()));
    }
    const uint64_t slice_ms = std::min(deadline_ms - now, kInterruptCheckMs);
    if (poll(&waited, 1, static_cast<int>(slice_ms)) > 0) return Ok();
  }
  return Fail(false, fmt::format("no answer within {} ms", timeouts_.io_ms));
}

// Not by hiredis, whose writes raise SIGPIPE and have no deadline as a whole.
Status RedisConnection::Send(const std::vector<std::string>& arguments, uint64_t deadline_ms) {
  std::string text = fmt::format("*{}\r\n", arguments.size());
  for (const std::string& argument : arguments) {
    text += fmt::format("${}\r\n", argument.size());
    text += argument;
    text += "\r\n";
  }
  size_t sent = 0;
  while (sent < text.size()) {  // Until the deadline that Wait keeps.
    const ssize_t count =
        send(context_->fd, text.data() + sent, text.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      MC_RETURN_IF_ERROR(Wait(POLLOUT, deadline_ms));
    } else {
      return Fail(true, fmt::format("the connection broke: {}", std::strerror(errno)));
    }
  }
  return Ok();
}

Result<RedisAnswer> RedisConnection::Exchange(const std::vector<std::string>& arguments) {
  const uint64_t deadline_ms = runtime_.NowMs() + timeouts_.io_ms;
  MC_RETURN_IF_ERROR(Send(arguments, deadline_ms));
  for (size_t reads = 0; reads < kReadsMax; ++reads) {
    void* found = nullptr;
    if (redisGetReplyFromReader(context_, &found) != REDIS_OK) {
      return Fail(false, fmt::format("unreadable answer: {}", context_->errstr));
    }
    if (found != nullptr) return AnswerOf(*Reply(static_cast<redisReply*>(found)));
    MC_RETURN_IF_ERROR(Wait(POLLIN, deadline_ms));
    if (redisBufferRead(context_) != REDIS_OK) {
      return Fail(true, fmt::format("the connection broke: {}", context_->errstr));
    }
  }
  return Fail(false, "the answer is too long");
}

bool RedisConnection::Idle() const {
  pollfd waited{.fd = context_->fd, .events = POLLIN, .revents = 0};
  // Anything readable is the end of the stream, or bytes that nobody asked for.
  return poll(&waited, 1, 0) == 0;
}

}  // namespace mooncake::metadata

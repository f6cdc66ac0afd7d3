#include "metadata/redis/redis_connection.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <array>
#include <utility>

namespace mooncake::metadata {
namespace {

constexpr size_t kErrorNameBytesMax = 32;
constexpr size_t kReadBytes = size_t{16} << 10;
constexpr size_t kReadsMax = size_t{1} << 16;  // So an answer is up to 1 GiB.

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

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

// ERR is what a server says to a wrong password or database, and to one connection too many.
bool IsPlainRefusal(const std::string& text) {
  return RedisErrorName(text) == "ERR" && text.find("max number of clients") == std::string::npos;
}

}  // namespace

bool IsRedisDenial(const std::string& text) {
  const std::string name = RedisErrorName(text);
  return name == "WRONGPASS" || name == "NOAUTH" || name == "NOPERM";
}

std::string RedisErrorName(const std::string& text) {
  size_t size = 0;
  while (size < text.size() && size < kErrorNameBytesMax && text[size] >= 'A' &&
         text[size] <= 'Z') {
    ++size;
  }
  return size == 0 ? "an error" : text.substr(0, size);
}

void FreeRedisReader::operator()(redisReader* reader) const { redisReaderFree(reader); }

RedisConnection::RedisConnection(const RedisAddress& address, RedisTimeouts timeouts,
                                 const std::atomic<uint64_t>& end_by_ms, Runtime& runtime)
    : address_(address),
      timeouts_(timeouts),
      runtime_(runtime),
      stream_(address.ToString(), end_by_ms, runtime),
      reader_(redisReaderCreate()) {}

RedisConnection::~RedisConnection() = default;

Error RedisConnection::Refused(std::string_view why) const {
  return MetadataError(fmt::format("{}: {}", address_.ToString(), why));
}

Status RedisConnection::Connect() {
  if (reader_ == nullptr) return Refused("out of memory");
  MC_RETURN_IF_ERROR(stream_.Connect(address_.host, address_.port, address_.tls,
                                     runtime_.NowMs() + timeouts_.connect_ms));
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
  denied_ = IsRedisDenial(answer.items[0]) || IsPlainRefusal(answer.items[0]);
  // Only the error's name: a server may repeat the arguments in what follows.
  return Refused(fmt::format("the server refused the {}: {}",
                             address_.username.empty() ? "password" : "user and password",
                             RedisErrorName(answer.items[0])));
}

Status RedisConnection::Select() {
  if (address_.db == 0) return Ok();
  MC_TRY(const RedisAnswer answer, Exchange({"SELECT", std::to_string(address_.db)}));
  if (!answer.is_error) return Ok();
  denied_ = IsRedisDenial(answer.items[0]) || IsPlainRefusal(answer.items[0]);
  return Refused(fmt::format("the server refused the database: {}", answer.items[0]));
}

Result<RedisAnswer> RedisConnection::Exchange(const std::vector<std::string>& arguments) {
  const uint64_t deadline_ms = runtime_.NowMs() + timeouts_.io_ms;
  std::string text = fmt::format("*{}\r\n", arguments.size());
  for (const std::string& argument : arguments) {
    text += fmt::format("${}\r\n", argument.size());
    text += argument;
    text += "\r\n";
  }
  MC_RETURN_IF_ERROR(stream_.Send(text, deadline_ms));
  std::array<char, kReadBytes> bytes;
  for (size_t reads = 0; reads < kReadsMax; ++reads) {
    void* found = nullptr;
    if (redisReaderGetReply(reader_.get(), &found) != REDIS_OK) {
      return Refused(fmt::format("unreadable answer: {}", reader_->errstr));
    }
    if (found != nullptr) return AnswerOf(*Reply(static_cast<redisReply*>(found)));
    MC_TRY(const size_t count, stream_.Receive(bytes, deadline_ms));
    if (redisReaderFeed(reader_.get(), bytes.data(), count) != REDIS_OK) {
      return Refused(fmt::format("unreadable answer: {}", reader_->errstr));
    }
  }
  return Refused("the answer is too long");
}

}  // namespace mooncake::metadata

#include "support/redis_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cstdlib>
#include <utility>

namespace mooncake::testing {
namespace {

constexpr uint64_t kStartMs = 20'000;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// Reads RESP from a blocking socket; the end of the stream reads as empty.
class Answers {
 public:
  explicit Answers(uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval limit{.tv_sec = 5, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    const sockaddr_in address = Loopback(port);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  }
  ~Answers() { close(fd_); }
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  std::string Ask(const std::vector<std::string>& arguments) {
    if (!connected_) return "";
    std::string text = "*" + std::to_string(arguments.size()) + "\r\n";
    for (const std::string& argument : arguments) {
      text += "$" + std::to_string(argument.size()) + "\r\n" + argument + "\r\n";
    }
    if (send(fd_, text.data(), text.size(), MSG_NOSIGNAL) != ssize_t(text.size())) return "";
    return Read();
  }

 private:
  std::string Read() {
    const std::string line = Line();
    if (line.empty() || line[0] == '-') return line;
    const std::string rest = line.substr(1);
    if (line[0] == '$') return rest == "-1" ? "" : Bytes(std::stoul(rest));
    if (line[0] != '*') return rest;
    std::string joined;
    for (long i = 0, count = std::stol(rest); i < count; ++i) {
      joined += (i == 0 ? "" : "\n") + Read();
    }
    return joined;
  }

  std::string Line() {
    std::string line;
    for (char c = 0; recv(fd_, &c, 1, 0) == 1 && c != '\n';) {
      if (c != '\r') line += c;
    }
    return line;
  }

  std::string Bytes(size_t size) {
    std::string text(size + 2, '\0');
    if (recv(fd_, text.data(), text.size(), MSG_WAITALL) != ssize_t(text.size())) return "";
    text.resize(size);
    return text;
  }

  const int fd_;
  bool connected_ = false;
};

}  // namespace

std::string PercentEncode(const std::string& text) {
  std::string encoded;
  for (const unsigned char c : text) {
    constexpr const char* kDigits = "0123456789ABCDEF";
    if (std::isalnum(c) != 0) {
      encoded += static_cast<char>(c);
    } else {
      encoded += {'%', kDigits[c >> 4], kDigits[c & 15]};
    }
  }
  return encoded;
}

RedisFixture::RedisFixture(Runtime& runtime, std::string password,
                           std::vector<std::string> more_arguments)
    : runtime_(runtime),
      password_(std::move(password)),
      more_arguments_(std::move(more_arguments)) {
  // Another process may take a port between the look and the start.
  for (int i = 0; i < 5; ++i) {
    port_ = FreePort();
    if (Start()) return;
  }
}

bool RedisFixture::Start() {
  std::vector<std::string> words = {
      "redis-server", "--bind", "127.0.0.1",  "--port", std::to_string(port_), "--save", "",
      "--appendonly", "no",     "--loglevel", "warning"};
  if (!password_.empty()) words.insert(words.end(), {"--requirepass", password_});
  words.insert(words.end(), more_arguments_.begin(), more_arguments_.end());
  process_.Start(std::move(words));
  const uint64_t deadline_ms = runtime_.NowMs() + kStartMs;
  while (runtime_.NowMs() < deadline_ms) {
    if (!process_.Running()) break;
    if (Command({"PING"}) == "PONG") return true;
    runtime_.SleepMs(10);
  }
  Stop();
  return false;
}

std::string RedisFixture::Command(const std::vector<std::string>& arguments, int db) {
  Answers answers(port_);
  if (!password_.empty()) answers.Ask({"AUTH", password_});
  if (db != 0) answers.Ask({"SELECT", std::to_string(db)});
  return answers.Ask(arguments);
}

uint64_t RedisFixture::Info(const std::string& section, const std::string& field) {
  const std::string text = Command({"INFO", section});
  const size_t at = text.find("\n" + field + ":");
  if (at == std::string::npos) return 0;
  return std::strtoull(text.c_str() + at + field.size() + 2, nullptr, 10);
}

std::string RedisFixture::Url(int db) const {
  const std::string credentials = password_.empty() ? "" : ":" + PercentEncode(password_) + "@";
  return "redis://" + credentials + "127.0.0.1:" + std::to_string(port_) + "/" + std::to_string(db);
}

}  // namespace mooncake::testing

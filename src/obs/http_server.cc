#include "obs/http_server.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/hostport.h"

namespace mooncake::obs {
namespace {

constexpr int kBacklog = 64;
constexpr uint64_t kWaitMs = 200;         // A deadline is at most that late.
constexpr uint64_t kDescriptorsMs = 100;  // Before accepting again when there were none left.
constexpr uint64_t kEndMs = 1'000;        // For the client to close after the reply.

constexpr int kTimeout = 408;
constexpr int kHeadTooLarge = 431;

const char* PhraseOf(int status) {
  switch (status) {
    case 200: return "OK";
    case 400: return "Bad Request";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 505: return "HTTP Version Not Supported";
    default: return "Internal Server Error";
  }
}

void Close(int* fd) {
  if (*fd >= 0) close(std::exchange(*fd, -1));
}

bool IsLoopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
  }
  if (address.ss_family != AF_INET6) return false;
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr) ||
         (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) && v6.sin6_addr.s6_addr[12] == 127);
}

// The numeric host and the port that a socket is bound to.
std::string BoundAddress(int fd) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host.data(), host.size(),
                  port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return base::JoinHostPort(host.data(), static_cast<uint16_t>(std::stoul(port.data())));
}

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

struct HttpServer::Connection {
  enum class Phase { kAsk, kReply, kEnd };

  explicit Connection(int socket) : fd(socket) {}
  ~Connection() { Close(&fd); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int fd;
  Phase phase = Phase::kAsk;
  bool from_loopback = false;
  uint64_t deadline_ms = 0;
  std::string head;
  std::string reply;
  size_t sent = 0;
};

HttpServer::HttpServer(Runtime& runtime, HttpHandler handler, HttpLimits limits)
    : runtime_(runtime), handler_(std::move(handler)), limits_(limits) {}

Result<std::unique_ptr<HttpServer>> HttpServer::Start(Runtime& runtime,
                                                      const std::string& bind_addr,
                                                      HttpHandler handler, HttpLimits limits) {
  auto server = std::make_unique<HttpServer>(runtime, std::move(handler), limits);
  MC_RETURN_IF_ERROR(server->Listen(bind_addr));
  server->thread_ = runtime.Spawn("mc-http", [self = server.get()] { self->Loop(); });
  return server;
}

HttpServer::~HttpServer() {
  if (thread_) {
    const uint64_t one = 1;
    while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
    }
    thread_->Join();
  }
  connections_.clear();
  Close(&listener_);
  Close(&wake_);
}

void HttpServer::CloseInherited() {
  // Another process's: nothing to join here.
  [[maybe_unused]] Thread* const inherited = thread_.release();
  connections_.clear();
  Close(&listener_);
  Close(&wake_);
}

Status HttpServer::Listen(const std::string& bind_addr) {
  MC_TRY(const base::HostPort address, base::ParseHostPort("bind_addr", bind_addr));
  if (!address.port) {
    return InvalidArgument(
        fmt::format("bind_addr '{}': expected host:port, port 0 for any free one", bind_addr));
  }
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(*address.port);
  const char* host = address.host.empty() ? nullptr : address.host.c_str();
  if (const int code = getaddrinfo(host, port.c_str(), &hints, &found); code != 0) {
    return TransportError(fmt::format("bind_addr '{}': {}", bind_addr, gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  int reason = EADDRNOTAVAIL;
  for (const addrinfo* at = found; at != nullptr && listener_ < 0; at = at->ai_next) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int yes = 1;
    if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        bind(fd, at->ai_addr, at->ai_addrlen) == 0 && listen(fd, kBacklog) == 0) {
      listener_ = fd;
    } else {
      reason = errno;
      Close(&fd);
    }
  }
  if (listener_ >= 0) wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) {
    return TransportError(
        fmt::format("bind_addr '{}': {}", bind_addr, strerror(listener_ < 0 ? reason : errno)));
  }
  address_ = BoundAddress(listener_);
  return Ok();
}

void HttpServer::Loop() {
  std::vector<pollfd> polled;
  while (true) {
    const uint64_t before_ms = runtime_.NowMs();
    const bool admits = connections_.size() < limits_.connections && before_ms >= accept_after_ms_;
    polled.assign({{wake_, POLLIN, 0}, {admits ? listener_ : -1, POLLIN, 0}});
    for (const auto& connection : connections_) {
      const bool writes = connection->phase == Connection::Phase::kReply;
      polled.push_back({connection->fd, static_cast<short>(writes ? POLLOUT : POLLIN), 0});
    }
    const bool idle = connections_.empty() && admits;
    poll(polled.data(), polled.size(), idle ? -1 : static_cast<int>(kWaitMs));
    if (polled[0].revents != 0) return;
    const uint64_t now_ms = runtime_.NowMs();
    for (size_t i = 0; i < connections_.size(); ++i) {
      const bool late = now_ms >= connections_[i]->deadline_ms;
      const bool ready = polled[i + 2].revents != 0;
      if ((ready || late) && !Advance(*connections_[i], now_ms)) connections_[i].reset();
    }
    std::erase(connections_, nullptr);
    if (polled[1].revents != 0) Admit(now_ms);
  }
}

void HttpServer::Admit(uint64_t now_ms) {
  while (connections_.size() < limits_.connections) {
    sockaddr_storage peer = {};
    socklen_t size = sizeof(peer);
    const int fd =
        accept4(listener_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
      // Out of descriptors: the listener stays readable, so look away for a while.
      if (!WouldBlock() && errno != ECONNABORTED) accept_after_ms_ = now_ms + kDescriptorsMs;
      return;
    }
    Connection& connection = *connections_.emplace_back(std::make_unique<Connection>(fd));
    connection.from_loopback = IsLoopback(peer);
    connection.deadline_ms = now_ms + limits_.ask_ms;
  }
}

bool HttpServer::Advance(Connection& connection, uint64_t now_ms) {
  switch (connection.phase) {
    case Connection::Phase::kAsk: return ReadHead(connection, now_ms);
    case Connection::Phase::kReply: return WriteReply(connection, now_ms);
    case Connection::Phase::kEnd: return now_ms < connection.deadline_ms && AwaitEnd(connection);
  }
  return false;
}

bool HttpServer::ReadHead(Connection& connection, uint64_t now_ms) {
  std::string& head = connection.head;
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t got = recv(connection.fd, chunk.data(), chunk.size(), 0);
    if (got < 0 && WouldBlock()) break;
    if (got <= 0) return false;
    const size_t seen = head.size() < 3 ? 0 : head.size() - 3;
    head.append(chunk.data(), static_cast<size_t>(got));
    const bool ended = head.find("\r\n\r\n", seen) != std::string::npos ||
                       head.find("\n\n", seen) != std::string::npos;
    if (!ended && head.size() <= limits_.head_bytes) continue;
    if (!ended || std::min(head.find("\r\n\r\n"), head.find("\n\n")) > limits_.head_bytes) {
      Reply(connection, {kHeadTooLarge, "text/plain", "the request is too large\n"}, now_ms);
      return WriteReply(connection, now_ms);
    }
    HttpRequest request;
    request.from_loopback = connection.from_loopback;
    const int refused = ParseHttpRequest(head, &request);
    if (refused != 0) {
      Reply(connection, {refused, "text/plain", fmt::format("{}\n", PhraseOf(refused))}, now_ms);
    } else {
      Reply(connection, handler_(request), now_ms);
    }
    return WriteReply(connection, now_ms);
  }
  if (now_ms < connection.deadline_ms) return true;
  if (head.empty()) return false;
  Reply(connection, {kTimeout, "text/plain", "the request took too long\n"}, now_ms);
  return WriteReply(connection, now_ms);
}

void HttpServer::Reply(Connection& connection, HttpResponse response, uint64_t now_ms) {
  connection.reply = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}"
      "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
      response.status, PhraseOf(response.status), response.content_type, response.body.size(),
      response.status == 405 ? "Allow: GET\r\n" : "");
  connection.reply += response.body;
  connection.head = {};
  connection.phase = Connection::Phase::kReply;
  connection.deadline_ms = now_ms + limits_.reply_ms;
}

bool HttpServer::WriteReply(Connection& connection, uint64_t now_ms) {
  const std::string& reply = connection.reply;
  while (connection.sent < reply.size()) {
    const ssize_t done = send(connection.fd, reply.data() + connection.sent,
                              reply.size() - connection.sent, MSG_NOSIGNAL);
    if (done < 0 && WouldBlock()) return now_ms < connection.deadline_ms;
    if (done <= 0) return false;
    connection.sent += static_cast<size_t>(done);
  }
  // Closing with unread bytes would reset the connection and might take the reply with it.
  shutdown(connection.fd, SHUT_WR);
  connection.reply = {};
  connection.phase = Connection::Phase::kEnd;
  connection.deadline_ms = now_ms + kEndMs;
  return AwaitEnd(connection);
}

// A bounded look: what a client goes on sending is thrown away until its time is over.
bool HttpServer::AwaitEnd(Connection& connection) {
  std::array<char, 4096> chunk;
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = recv(connection.fd, chunk.data(), chunk.size(), 0);
    if (got < 0 && WouldBlock()) return true;
    if (got <= 0) return false;
  }
  return true;
}

}  // namespace mooncake::obs

#include "support/scripted_http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "base/text.h"

namespace mooncake::testing {
namespace {

constexpr int kLookMs = 5;

// Whether the head and as much of a body as it tells of are there.
bool IsWhole(const std::string& request) {
  const size_t head = request.find("\r\n\r\n");
  if (head == std::string::npos) return false;
  constexpr std::string_view kLength = "content-length: ";
  const std::string lower = base::Lower(request.substr(0, head + 2));
  const size_t at = lower.find(kLength);
  if (at == std::string::npos) return true;
  const size_t start = at + kLength.size();
  const auto length =
      base::ParseUint(std::string_view(lower).substr(start, lower.find('\r', start) - start));
  return request.size() >= head + 4 + length.value_or(0);
}

}  // namespace

bool ScriptedHttp::Peer::Send(std::string_view bytes) {
  while (!stop_ && !bytes.empty()) {
    pollfd waited{.fd = fd_, .events = POLLOUT, .revents = 0};
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return bytes.empty();
}

ScriptedHttp::ScriptedHttp(Answerer answerer)
    : answerer_(std::move(answerer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(listener_, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  listen(listener_, 64);
  accepting_ = std::thread([this] { Accept(); });
}

ScriptedHttp::~ScriptedHttp() {
  stop_ = true;
  accepting_.join();
  for (std::thread& thread : serving_) thread.join();
  close(listener_);
}

std::string ScriptedHttp::Answer(int status, std::string_view body) {
  return base::StrCat("HTTP/1.1 ", status,
                      " Scripted\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

void ScriptedHttp::Accept() {
  pollfd waited{.fd = listener_, .events = POLLIN, .revents = 0};
  while (!stop_) {
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client >= 0) serving_.emplace_back([this, client] { Serve(client); });
  }
}

void ScriptedHttp::Serve(int client) {
  std::string request;
  while (!stop_ && !IsWhole(request)) {
    pollfd waited{.fd = client, .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = recv(client, bytes.data(), bytes.size(), 0);
    if (count <= 0) break;
    request.append(bytes.data(), static_cast<size_t>(count));
  }
  Peer peer(client, stop_);
  if (IsWhole(request)) answerer_(request, peer);
  close(client);
}

}  // namespace mooncake::testing

#include "support/scripted_http.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <utility>

#include "base/text.h"

namespace mooncake::testing {
namespace {

constexpr int kLookMs = LoopbackServer::kLookMs;

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
    : answerer_(std::move(answerer)),
      server_([this](int client, const std::atomic<bool>& stop) { Serve(client, stop); }) {}

std::string ScriptedHttp::Answer(int status, std::string_view body) {
  return base::StrCat("HTTP/1.1 ", status,
                      " Scripted\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

void ScriptedHttp::Serve(int client, const std::atomic<bool>& stop) {
  std::string request;
  while (!stop && !IsWhole(request)) {
    pollfd waited{.fd = client, .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, kLookMs) <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = recv(client, bytes.data(), bytes.size(), 0);
    if (count <= 0) break;
    request.append(bytes.data(), static_cast<size_t>(count));
  }
  Peer peer(client, stop);
  if (IsWhole(request)) answerer_(request, peer);
}

}  // namespace mooncake::testing

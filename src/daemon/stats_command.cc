#include "daemon/stats_command.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/hostport.h"
#include "client/dummy/unix_socket.h"

namespace mooncake::daemon {

namespace {

constexpr uint64_t kTimeoutMs = 2'000;
constexpr size_t kAnswerMax = 64 << 20;
constexpr size_t kRowsMax = 12;

Result<client::Descriptor> Connect(const std::string& server) {
  MC_TRY(const base::HostPort address, base::ParseHostPort("--server", server));
  if (!address.port) return InvalidArgument(fmt::format("--server {}: has no port", server));
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(*address.port);
  if (const int code = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); code != 0) {
    return TransportError(fmt::format("{}: {}", server, gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    client::Descriptor socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0));
    if (!socket) continue;
    client::SetSocketTimeout(socket.get(), kTimeoutMs);
    if (connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0) return socket;
  }
  return TransportError(fmt::format("{}: {}", server, strerror(errno)));
}

// The body of the answer to a GET.
Result<std::string> Get(const std::string& server, const std::string& path) {
  MC_TRY(const client::Descriptor socket, Connect(server));
  const std::string request =
      fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", path, server);
  if (send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(request.size())) {
    return TransportError(fmt::format("{}: {}", server, strerror(errno)));
  }
  std::string answer;
  std::string chunk(64 << 10, '\0');
  while (answer.size() < kAnswerMax) {
    const ssize_t got = recv(socket.get(), chunk.data(), chunk.size(), 0);
    if (got < 0) return TransportError(fmt::format("{}: {}", server, strerror(errno)));
    if (got == 0) break;
    answer.append(chunk, 0, static_cast<size_t>(got));
  }
  return BodyOf(server + path, answer);
}

std::string Field(const nlohmann::json& row, const char* name) {
  const auto found = row.find(name);
  if (found == row.end()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

void PrintRows(const nlohmann::json& summary, const char* section,
               std::initializer_list<const char*> fields) {
  const auto rows = summary.find(section);
  if (rows == summary.end() || !rows->is_array() || rows->empty()) return;
  std::cout << section << '\n';
  size_t printed = 0;
  for (const nlohmann::json& row : *rows) {
    if (printed++ == kRowsMax) break;
    std::cout << ' ';
    for (const char* field : fields) std::cout << ' ' << field << '=' << Field(row, field);
    std::cout << '\n';
  }
}

void PrintBreakdown(const nlohmann::json& summary) {
  std::cout << "tenant: " << Field(summary, "tenant") << '\n';
  if (summary.contains("note")) std::cout << "note: " << Field(summary, "note") << '\n';
  if (const auto segments = summary.find("segments"); segments != summary.end()) {
    std::cout << "segments: count=" << Field(*segments, "count")
              << " used_bytes=" << Field(*segments, "used_bytes")
              << " capacity_bytes=" << Field(*segments, "capacity_bytes") << '\n';
  }
  PrintRows(summary, "bottlenecks",
            {"source", "name", "result", "calls_total", "latency_total_us", "latency_p99_us"});
  PrintRows(summary, "operations",
            {"kind", "operation", "result", "calls_total", "bytes_in_total", "bytes_out_total",
             "latency_avg_us", "latency_p99_us"});
  PrintRows(summary, "metadata_operations",
            {"backend", "operation", "result", "calls_total", "latency_avg_us", "latency_p99_us"});
  PrintRows(summary, "transport",
            {"direction", "peer_kind", "result", "operations_total", "bytes_total"});
}

}  // namespace

Result<std::string> BodyOf(const std::string& from, const std::string& answer) {
  constexpr std::string_view kVersion = "HTTP/1.";  // Then a digit and the status.
  const size_t body = answer.find("\r\n\r\n");
  const bool fine = answer.starts_with(kVersion) && answer.find(" 200") == kVersion.size() + 1;
  if (body == std::string::npos || !fine) {
    return TransportError(fmt::format("{}: {}", from, answer.substr(0, answer.find("\r\n"))));
  }
  return answer.substr(body + 4);
}

int RunStats(const StatsOptions& options) {
  const Result<std::string> body = Get(options.server, options.breakdown ? "/breakdown" : "/stats");
  if (!body) {
    std::cerr << kProgram << ": stats: " << body.error().context << '\n';
    return 1;
  }
  const auto json = nlohmann::json::parse(*body, nullptr, /*allow_exceptions=*/false);
  if (options.json || json.is_discarded()) {
    std::cout << *body << '\n';
  } else if (options.breakdown) {
    PrintBreakdown(json);
  } else {
    std::cout << json.dump(2) << '\n';
  }
  return 0;
}

}  // namespace mooncake::daemon

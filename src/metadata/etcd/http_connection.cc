#include "metadata/etcd/http_connection.h"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/hostport.h"
#include "base/text.h"

namespace mooncake::metadata {
namespace {

constexpr size_t kReadBytes = size_t{16} << 10;
constexpr size_t kLineBytesMax = size_t{16} << 10;
constexpr size_t kHeadersMax = 100;
constexpr size_t kChunksMax = size_t{1} << 20;
constexpr uint64_t kBodyBytesMax = uint64_t{256} << 20;

std::optional<uint64_t> ParseHex(std::string_view text) {
  uint64_t number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [next, error] = std::from_chars(begin, end, number, 16);
  // A chunk's size may be followed by extensions.
  if (error != std::errc() || (next != end && *next != ';')) return std::nullopt;
  return number;
}

}  // namespace

HttpConnection::HttpConnection(const EtcdEndpoint& endpoint, const std::atomic<uint64_t>& end_by_ms,
                               Runtime& runtime)
    : endpoint_(endpoint), stream_(endpoint.ToString(), end_by_ms, runtime) {}

Status HttpConnection::Connect(const std::optional<TlsOptions>& tls, uint64_t deadline_ms) {
  return stream_.Connect(endpoint_.host, endpoint_.port, tls, deadline_ms);
}

Error HttpConnection::Unreadable(std::string_view why) const {
  return MetadataError(fmt::format("{}: not an HTTP answer: {}", endpoint_.ToString(), why));
}

Result<HttpAnswer> HttpConnection::Post(std::string_view path, std::string_view token,
                                        std::string_view body, uint64_t deadline_ms) {
  std::string request = fmt::format(
      "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
      path, base::JoinHostPort(endpoint_.host, endpoint_.port), body.size());
  if (!token.empty()) request += fmt::format("Authorization: {}\r\n", token);
  request.append("\r\n").append(body);
  MC_RETURN_IF_ERROR(stream_.Send(request, deadline_ms));

  MC_TRY(const std::string first, ReadLine(deadline_ms));
  HttpAnswer answer;
  const bool whole = first.starts_with("HTTP/1.") && first.size() >= 12;  // "HTTP/1.1 200"
  const auto status = whole ? base::ParseUint(first.substr(9, 3)) : std::nullopt;
  if (!status) return Unreadable("the first line is malformed");
  answer.status = static_cast<int>(*status);
  answer.closes = first.starts_with("HTTP/1.0");

  std::optional<uint64_t> length;
  bool chunked = false;
  for (size_t i = 0;; ++i) {
    if (i == kHeadersMax) return Unreadable("too many headers");
    MC_TRY(const std::string line, ReadLine(deadline_ms));
    if (line.empty()) break;
    const size_t colon = std::min(line.find(':'), line.size() - 1);
    const std::string name = base::Lower(std::string_view(line).substr(0, colon));
    const std::string value = base::Lower(base::Trim(std::string_view(line).substr(colon + 1)));
    if (name == "content-length") length = base::ParseUint(value, kBodyBytesMax);
    if (name == "transfer-encoding") chunked = value == "chunked";
    if (name == "connection" && value == "close") answer.closes = true;
  }
  if (!chunked && !length && answer.closes) return answer;  // Its status has to be enough.
  if (!chunked && !length) return Unreadable("its length is missing or above the limit");
  MC_RETURN_IF_ERROR(chunked ? ReadChunks(answer.body, deadline_ms)
                             : ReadInto(answer.body, *length, deadline_ms));
  return answer;
}

Status HttpConnection::ReadChunks(std::string& body, uint64_t deadline_ms) {
  for (size_t chunk = 0; chunk < kChunksMax; ++chunk) {
    MC_TRY(const std::string line, ReadLine(deadline_ms));
    const std::optional<uint64_t> size = ParseHex(line);
    if (!size || *size > kBodyBytesMax - body.size()) {
      return Unreadable("the size of a chunk is malformed or above the limit");
    }
    if (*size > 0) {
      MC_RETURN_IF_ERROR(ReadInto(body, *size, deadline_ms));
      MC_RETURN_IF_ERROR(ReadLine(deadline_ms));
      continue;
    }
    for (size_t trailer = 0; trailer < kHeadersMax; ++trailer) {
      MC_TRY(const std::string rest, ReadLine(deadline_ms));
      if (rest.empty()) return Ok();
    }
    break;
  }
  return Unreadable("it does not end");
}

Result<std::string> HttpConnection::ReadLine(uint64_t deadline_ms) {
  size_t end = buffer_.find('\n');
  while (end == std::string::npos) {
    if (buffer_.size() > kLineBytesMax) return Unreadable("a line is too long");
    MC_RETURN_IF_ERROR(Fill(deadline_ms));
    end = buffer_.find('\n');
  }
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return line;
}

Status HttpConnection::ReadInto(std::string& body, uint64_t count, uint64_t deadline_ms) {
  while (buffer_.size() < count) MC_RETURN_IF_ERROR(Fill(deadline_ms));
  body.append(buffer_, 0, count);
  buffer_.erase(0, count);
  return Ok();
}

Status HttpConnection::Fill(uint64_t deadline_ms) {
  std::array<char, kReadBytes> bytes;
  MC_TRY(const size_t count, stream_.Receive(bytes, deadline_ms));
  buffer_.append(bytes.data(), count);
  return Ok();
}

}  // namespace mooncake::metadata

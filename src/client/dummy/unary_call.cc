#include "client/dummy/unary_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/hostport.h"
#include "metadata/net/stream.h"

namespace mooncake::client {

namespace {

constexpr size_t kFrameHeader = 9;
constexpr size_t kFrameMax = 16 << 10;  // What a peer may send that was told of no other limit.
// No more than comes without an update of the window, which is 65,535 bytes.
constexpr size_t kReplyMax = 60'000;
constexpr int kFramesMax = 1'000;
constexpr size_t kPrefix = 5;  // Of a message: whether it is compressed, and its size.

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kReset = 3,
  kSettings = 4,
  kPing = 6,
  kGoAway = 7,
};
constexpr uint8_t kAck = 0x1;        // Of settings and pings.
constexpr uint8_t kEndStream = 0x1;  // Of data and headers.
constexpr uint8_t kEndHeaders = 0x4;
constexpr uint8_t kPadded = 0x8;
constexpr uint32_t kStream = 1;

void AppendNumber(uint32_t value, int bytes, std::string* out) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    out->push_back(static_cast<char>(value >> shift));
  }
}

uint32_t NumberAt(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

void AppendFrame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload,
                 std::string* out) {
  AppendNumber(static_cast<uint32_t>(payload.size()), 3, out);
  out->push_back(static_cast<char>(type));
  out->push_back(static_cast<char>(flags));
  AppendNumber(stream, 4, out);
  out->append(payload);
}

// As HPACK has it: a length in seven bits, then a plain text.
void AppendText(std::string_view text, std::string* out) {
  size_t rest = text.size();
  out->push_back(static_cast<char>(std::min<size_t>(rest, 127)));
  if (rest >= 127) {
    for (rest -= 127; rest >= 128; rest /= 128) {
      out->push_back(static_cast<char>(rest % 128 + 128));
    }
    out->push_back(static_cast<char>(rest));
  }
  out->append(text);
}

std::string RequestOf(const UnaryCall& call) {
  std::string headers;
  const std::pair<std::string_view, std::string_view> fields[] = {
      {":method", "POST"},          {":scheme", "http"}, {":path", call.method},
      {":authority", call.address}, {"te", "trailers"},  {"content-type", "application/grpc"},
  };
  for (const auto& [name, value] : fields) {
    headers.push_back(0);  // A name and a value as they are, not to be remembered.
    AppendText(name, &headers);
    AppendText(value, &headers);
  }
  std::string data(1, 0);
  AppendNumber(static_cast<uint32_t>(call.message.size()), 4, &data);
  data += call.message;
  std::string out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  AppendFrame(FrameType::kSettings, 0, 0, "", &out);
  AppendFrame(FrameType::kHeaders, kEndHeaders, kStream, headers, &out);
  AppendFrame(FrameType::kData, kEndStream, kStream, data, &out);
  return out;
}

class Exchange {
 public:
  Exchange(metadata::Stream& stream, const UnaryCall& call) : stream_(stream), call_(call) {}

  Result<std::string> Run() {
    MC_RETURN_IF_ERROR(stream_.Send(RequestOf(call_), call_.deadline_ms));
    for (int frame = 0; !ended_; ++frame) {
      if (frame == kFramesMax) return Malformed();
      MC_RETURN_IF_ERROR(TakeFrame());
    }
    if (reply_.empty()) {
      return Error(TransportError(
          fmt::format("{} was refused; is that a daemon of this version?", call_.method)));
    }
    const bool plain = reply_.size() >= kPrefix && reply_[0] == 0;
    if (!plain || NumberAt(reply_.substr(1, 4)) != reply_.size() - kPrefix) return Malformed();
    return reply_.substr(kPrefix);
  }

 private:
  static Error Malformed() { return TransportError("what answers is not a daemon"); }

  Status Fill(size_t size) {
    while (in_.size() < size) {
      std::array<char, 4096> more;
      MC_TRY(const size_t got, stream_.Receive(more, call_.deadline_ms));
      in_.append(more.data(), got);
    }
    return Ok();
  }

  Status TakeFrame() {
    MC_RETURN_IF_ERROR(Fill(kFrameHeader));
    const size_t size = NumberAt(in_.substr(0, 3));
    if (size > kFrameMax) return Malformed();
    MC_RETURN_IF_ERROR(Fill(kFrameHeader + size));
    const auto type = static_cast<FrameType>(in_[3]);
    const auto flags = static_cast<uint8_t>(in_[4]);
    const uint32_t stream = NumberAt(in_.substr(5, 4)) & ~(1U << 31);
    const std::string payload = in_.substr(kFrameHeader, size);
    in_.erase(0, kFrameHeader + size);
    switch (type) {
      case FrameType::kData:
      case FrameType::kHeaders:
        if (stream != kStream) return Malformed();
        if (type == FrameType::kData) MC_RETURN_IF_ERROR(TakeData(flags, payload));
        ended_ = (flags & kEndStream) != 0;
        return Ok();
      case FrameType::kReset:
      case FrameType::kGoAway: return TransportError("the daemon ended the connection");
      case FrameType::kSettings:
      case FrameType::kPing: {
        if ((flags & kAck) != 0) return Ok();
        std::string answer;
        AppendFrame(type, kAck, 0, type == FrameType::kPing ? payload : "", &answer);
        return stream_.Send(answer, call_.deadline_ms);
      }
    }
    return Ok();  // Window updates and what else there is do not matter for one small reply.
  }

  Status TakeData(uint8_t flags, std::string_view payload) {
    if ((flags & kPadded) != 0) {
      if (payload.empty()) return Malformed();
      const auto padding = static_cast<uint8_t>(payload[0]);
      payload.remove_prefix(1);
      if (padding > payload.size()) return Malformed();
      payload.remove_suffix(padding);
    }
    if (reply_.size() + payload.size() > kReplyMax) return Malformed();
    reply_.append(payload);
    return Ok();
  }

  metadata::Stream& stream_;
  const UnaryCall& call_;
  std::string in_;
  std::string reply_;
  bool ended_ = false;
};

}  // namespace

Result<std::string> UnaryCall::Run(const std::atomic<uint64_t>& end_by_ms, Runtime& runtime) const {
  const auto as_ours = [&](const Error& error) {
    const bool named = error.context.find(address) != std::string::npos;
    return TransportError(named ? error.context
                                : fmt::format("daemon {}: {}", address, error.context));
  };
  MC_TRY(const base::HostPort parsed, base::ParseHostPort("server_address", address));
  metadata::Stream stream("daemon " + address, end_by_ms, runtime);
  const Status connected =
      stream.Connect(parsed.host, parsed.port.value_or(0), std::nullopt, deadline_ms);
  if (!connected.ok()) return as_ours(connected.error());
  Result<std::string> reply = Exchange(stream, *this).Run();
  if (!reply) return as_ours(reply.error());
  return reply;
}

}  // namespace mooncake::client

#include "metadata/net/grpc_session.h"

#include <fmt/format.h>
#include <nghttp2/nghttp2.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "base/url.h"

namespace mooncake::metadata {
namespace {

constexpr size_t kPrefixBytes = 5;  // Whether the message is compressed, and its size.
constexpr size_t kHeaderBytesMax = size_t{16} << 10;  // Of a reply, names and values.
constexpr size_t kHeaderBytesEach = 32;               // What HTTP/2 adds for each.
// What one reply may cost on the wire besides its message, twice: frames, padding, pings.
constexpr size_t kWireBytesMore = size_t{1} << 20;
// How far the server may go on without hearing from us.
constexpr int32_t kWindowBytes = 1 << 20;
constexpr size_t kRefusalBytesMax = 200;
constexpr int kCodeMax = 16;

constexpr int kUnknownCode = 2;
constexpr int kPermissionDeniedCode = 7;
constexpr int kUnimplementedCode = 12;
constexpr int kUnavailableCode = 14;
constexpr int kUnauthenticatedCode = 16;

// As gRPC's protocol maps the answers of proxies and of servers without gRPC.
int CodeOfHttp(std::string_view status) {
  if (status == "401") return kUnauthenticatedCode;
  if (status == "403") return kPermissionDeniedCode;
  if (status == "404") return kUnimplementedCode;
  const bool passes = status == "429" || status == "502" || status == "503" || status == "504";
  return passes ? kUnavailableCode : kUnknownCode;
}

std::string Printable(std::string_view text) {
  // Bytes may be percent-encoded; where they are so wrongly, the text is as it came.
  std::string printable = base::PercentDecode(text).value_or(std::string(text));
  printable.resize(std::min(printable.size(), kRefusalBytesMax));
  for (char& c : printable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return printable;
}

std::string Prefixed(std::string_view message) {
  std::string framed(1, '\0');
  for (int shift = 24; shift >= 0; shift -= 8) {
    framed.push_back(static_cast<char>(message.size() >> shift));
  }
  return framed.append(message);
}

uint64_t SizeIn(std::string_view prefix) {
  uint64_t size = 0;
  for (const char byte : prefix.substr(1)) size = size << 8 | static_cast<uint8_t>(byte);
  return size;
}

nghttp2_nv Field(std::string_view name, std::string_view value, uint8_t flags = 0) {
  // nghttp2 copies both and writes to neither.
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), flags};
}

std::string_view Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

}  // namespace

struct GrpcSession::Hooks {
  static GrpcSession& Of(void* self) { return *static_cast<GrpcSession*>(self); }

  static int OnHeader(nghttp2_session* /*session*/, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t /*flags*/,
                      void* self) {
    if (frame->hd.stream_id != Of(self).now_.stream) return 0;
    Of(self).TakeHeader(Text(name, name_size), Text(value, value_size));
    return 0;
  }

  static int OnData(nghttp2_session* /*session*/, uint8_t /*flags*/, int32_t stream,
                    const uint8_t* data, size_t size, void* self) {
    if (stream == Of(self).now_.stream) Of(self).TakeData(Text(data, size));
    return 0;
  }

  static int OnFrame(nghttp2_session* /*session*/, const nghttp2_frame* frame, void* self) {
    if (frame->hd.type == NGHTTP2_SETTINGS) Of(self).greeted_ = true;
    const bool carries = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    const bool ends = carries && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (ends && frame->hd.stream_id == Of(self).now_.stream) Of(self).now_.ended = true;
    return 0;
  }

  static int OnInvalidFrame(nghttp2_session* /*session*/, const nghttp2_frame* /*frame*/, int error,
                            void* self) {
    Of(self).Break(nghttp2_strerror(error));
    return 0;
  }

  static int OnClose(nghttp2_session* /*session*/, int32_t stream, uint32_t /*error*/, void* self) {
    GrpcSession& session = Of(self);
    if (stream == session.now_.stream && !session.now_.ended) session.cut_ = true;
    return 0;
  }

  static ssize_t GiveRequest(nghttp2_session* /*session*/, int32_t /*stream*/, uint8_t* into,
                             size_t size, uint32_t* flags, nghttp2_data_source* /*source*/,
                             void* self) {
    Exchange& now = Of(self).now_;
    const size_t count = std::min(size, now.request.size() - now.sent);
    std::copy_n(now.request.data() + now.sent, count, into);
    now.sent += count;
    if (now.sent == now.request.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(count);
  }

  static nghttp2_session* NewSession(GrpcSession* self) {
    nghttp2_session_callbacks* callbacks = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks) != 0) return nullptr;
    nghttp2_session_callbacks_set_on_header_callback(callbacks, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, OnData);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, OnFrame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, OnInvalidFrame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, OnClose);
    nghttp2_session* session = nullptr;
    const int made = nghttp2_session_client_new(&session, callbacks, self);
    nghttp2_session_callbacks_del(callbacks);
    return made == 0 ? session : nullptr;
  }
};

void GrpcSession::Free::operator()(nghttp2_session* session) const { nghttp2_session_del(session); }

GrpcSession::GrpcSession(std::string authority, bool tls, size_t reply_bytes_max)
    : authority_(std::move(authority)),
      tls_(tls),
      reply_bytes_max_(reply_bytes_max),
      session_(Hooks::NewSession(this)) {
  const std::array<nghttp2_settings_entry, 3> settings = {{
      {NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kWindowBytes},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, kHeaderBytesMax},
  }};
  failed_ = session_ == nullptr ||
            nghttp2_submit_settings(session_.get(), NGHTTP2_FLAG_NONE, settings.data(),
                                    settings.size()) != 0 ||
            nghttp2_session_set_local_window_size(session_.get(), NGHTTP2_FLAG_NONE, 0,
                                                  kWindowBytes) != 0;
}

GrpcSession::~GrpcSession() = default;

Error GrpcSession::Fail(std::string_view why) {
  failed_ = true;
  return MetadataError(std::string(why));
}

void GrpcSession::Break(std::string_view rule) {
  if (broken_rule_.empty()) broken_rule_ = rule;
}

bool GrpcSession::Ready() const {
  // A reply that came before all of the request was sent leaves the rest of it behind.
  const bool whole = now_.sent == now_.request.size();
  return !failed_ && !cut_ && whole && nghttp2_session_check_request_allowed(session_.get()) != 0;
}

Status GrpcSession::Begin(const GrpcCall& call) {
  if (!Ready()) return Fail("the connection takes no more calls");
  now_ = {};
  now_.request = Prefixed(call.message);
  std::array<nghttp2_nv, 7> fields = {
      Field(":method", "POST"),
      Field(":scheme", tls_ ? "https" : "http"),
      Field(":path", call.method),
      Field(":authority", authority_),
      Field("te", "trailers"),
      Field("content-type", "application/grpc"),
      // Not to be remembered by whoever passes it on.
      Field("token", call.token, NGHTTP2_NV_FLAG_NO_INDEX),
  };
  nghttp2_data_provider body{};
  body.read_callback = Hooks::GiveRequest;
  const size_t count = fields.size() - (call.token.empty() ? 1 : 0);
  now_.stream =
      nghttp2_submit_request(session_.get(), nullptr, fields.data(), count, &body, nullptr);
  if (now_.stream < 0) return Fail(nghttp2_strerror(now_.stream));
  return Ok();
}

Result<std::string> GrpcSession::TakeOutput() {
  std::string wire;
  while (true) {  // Until the windows are full or nothing is left.
    const uint8_t* bytes = nullptr;
    const ssize_t count = nghttp2_session_mem_send(session_.get(), &bytes);
    if (count < 0) return Fail(nghttp2_strerror(static_cast<int>(count)));
    if (count == 0) break;
    wire.append(Text(bytes, static_cast<size_t>(count)));
  }
  if (cut_ && !now_.ended) return Fail("the reply breaks the rules of HTTP/2");
  // nghttp2 has given up on the other side, whose first frame was none, for example.
  if (!now_.ended && nghttp2_session_want_read(session_.get()) == 0) return Fail("it is no HTTP/2");
  return wire;
}

Status GrpcSession::AddInput(std::string_view wire) {
  now_.wire_bytes += wire.size();
  if (now_.wire_bytes > 2 * reply_bytes_max_ + kWireBytesMore) return Fail("it does not end");
  const ssize_t taken = nghttp2_session_mem_recv(
      session_.get(), reinterpret_cast<const uint8_t*>(wire.data()), wire.size());
  if (taken < 0) Break(nghttp2_strerror(static_cast<int>(taken)));
  if (!broken_rule_.empty()) return Fail(broken_rule_);
  // Nothing more comes after a GOAWAY that leaves out the present call.
  cut_ = cut_ || (!now_.ended && nghttp2_session_want_read(session_.get()) == 0);
  if (cut_) return Fail("the server ended the call");
  return Ok();
}

void GrpcSession::TakeHeader(std::string_view name, std::string_view value) {
  now_.header_bytes += name.size() + value.size() + kHeaderBytesEach;
  if (now_.header_bytes > kHeaderBytesMax) return Break("the headers are too long");
  if (name == ":status") now_.http_status = value;
  if (name == "content-type") now_.content_type = value;
  if (name == "grpc-status") now_.grpc_status = value;
  if (name == "grpc-message") now_.grpc_message = value;
}

void GrpcSession::TakeData(std::string_view data) {
  const size_t missing = std::min(kPrefixBytes - now_.prefix.size(), data.size());
  now_.prefix.append(data.substr(0, missing));
  data.remove_prefix(missing);
  if (data.size() > reply_bytes_max_ - now_.reply.size()) {
    return Break("the reply is larger than the limit");
  }
  now_.reply.append(data);
}

Result<GrpcReply> GrpcSession::TakeReply() {
  if (now_.http_status != "200") {
    return GrpcReply{.code = CodeOfHttp(now_.http_status),
                     .refusal = fmt::format("HTTP status {}", Printable(now_.http_status))};
  }
  if (!now_.content_type.starts_with("application/grpc")) return Fail("it is HTTP, but not gRPC");
  const std::optional<uint64_t> code = base::ParseUint(now_.grpc_status);
  if (!code) return Fail("the reply has no status");
  if (*code != 0) {
    return GrpcReply{.code = *code > kCodeMax ? kUnknownCode : static_cast<int>(*code),
                     .refusal = Printable(now_.grpc_message)};
  }
  if (now_.prefix.size() < kPrefixBytes) return Fail("the reply has no message");
  if (now_.prefix[0] != 0) return Fail("the reply is compressed, which nobody allowed");
  if (SizeIn(now_.prefix) != now_.reply.size()) return Fail("the reply is not one message");
  return GrpcReply{.message = std::move(now_.reply)};
}

}  // namespace mooncake::metadata

#include "support/scripted_grpc.h"

#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

namespace mooncake::testing {
namespace {

constexpr size_t kPrefixBytes = 5;

std::string_view Text(const uint8_t* bytes, size_t size) {
  return {reinterpret_cast<const char*>(bytes), size};
}

nghttp2_nv Field(std::string_view name, std::string_view value) {
  const auto bytes = [](std::string_view text) {
    return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  };
  return {bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
}

// One connection.
class Peer {
 public:
  explicit Peer(const ScriptedGrpc::Answerer& answerer) : answerer_(answerer) {
    nghttp2_session_callbacks* hooks = nullptr;
    nghttp2_session_callbacks_new(&hooks);
    nghttp2_session_callbacks_set_on_header_callback(hooks, OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(hooks, OnData);
    nghttp2_session_callbacks_set_on_frame_recv_callback(hooks, OnFrame);
    nghttp2_session_server_new(&session_, hooks, this);
    nghttp2_session_callbacks_del(hooks);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
  }
  ~Peer() { nghttp2_session_del(session_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // False: the connection is to end.
  bool Take(std::string_view wire) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(wire.data());
    return nghttp2_session_mem_recv(session_, bytes, wire.size()) >= 0;
  }
  std::string Output() {
    std::string wire;
    const uint8_t* bytes = nullptr;
    for (ssize_t count; (count = nghttp2_session_mem_send(session_, &bytes)) > 0;) {
      wire.append(Text(bytes, static_cast<size_t>(count)));
    }
    return wire;
  }
  bool open() const {
    return nghttp2_session_want_read(session_) != 0 || nghttp2_session_want_write(session_) != 0;
  }

 private:
  struct Stream {
    ScriptedGrpc::Call call;
    ScriptedGrpc::Reply reply;
    std::string body;
    size_t sent = 0;
  };

  static Peer& Of(void* self) { return *static_cast<Peer*>(self); }

  static int OnHeader(nghttp2_session*, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t,
                      void* self) {
    ScriptedGrpc::Call& call = Of(self).streams_[frame->hd.stream_id].call;
    if (Text(name, name_size) == ":path") call.method = Text(value, value_size);
    if (Text(name, name_size) == "token") call.token = Text(value, value_size);
    return 0;
  }

  static int OnData(nghttp2_session*, uint8_t, int32_t stream, const uint8_t* data, size_t size,
                    void* self) {
    Of(self).streams_[stream].call.message.append(Text(data, size));
    return 0;
  }

  static int OnFrame(nghttp2_session*, const nghttp2_frame* frame, void* self) {
    const bool carries = frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
    if (carries && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) {
      Of(self).Answer(frame->hd.stream_id);
    }
    return 0;
  }

  static ssize_t GiveBody(nghttp2_session* session, int32_t id, uint8_t* into, size_t size,
                          uint32_t* flags, nghttp2_data_source*, void* self) {
    Stream& stream = Of(self).streams_[id];
    const size_t count = std::min(size, stream.body.size() - stream.sent);
    std::copy_n(stream.body.data() + stream.sent, count, into);
    stream.sent += count;
    if (stream.sent < stream.body.size()) return static_cast<ssize_t>(count);
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    const std::string code = std::to_string(stream.reply.code);
    const std::array<nghttp2_nv, 2> fields = {Field("grpc-status", code),
                                              Field("grpc-message", stream.reply.refusal)};
    nghttp2_submit_trailer(session, id, fields.data(), fields.size());
    return static_cast<ssize_t>(count);
  }

  void Answer(int32_t id) {
    Stream& stream = streams_[id];
    stream.call.message.erase(0, kPrefixBytes);
    stream.reply = answerer_(stream.call);
    const ScriptedGrpc::Reply& reply = stream.reply;
    if (reply.code == 0) {
      stream.body.push_back('\0');
      for (int shift = 24; shift >= 0; shift -= 8) {
        stream.body.push_back(static_cast<char>(reply.message.size() >> shift));
      }
      stream.body += reply.message;
    }
    const std::array<nghttp2_nv, 2> fields = {Field(":status", reply.http_status),
                                              Field("content-type", reply.content_type)};
    nghttp2_data_provider body{};
    body.read_callback = GiveBody;
    nghttp2_submit_response(session_, id, fields.data(), fields.size(), &body);
    if (reply.goes_away) nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, id, 0, nullptr, 0);
  }

  const ScriptedGrpc::Answerer& answerer_;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, Stream> streams_;
};

// False: the other side is gone, or the test is over.
bool SendAll(int to, std::string_view bytes, const std::atomic<bool>& stop) {
  while (!stop && !bytes.empty()) {
    pollfd waited{.fd = to, .events = POLLOUT, .revents = 0};
    if (poll(&waited, 1, LoopbackServer::kLookMs) <= 0) continue;
    const ssize_t count = send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return bytes.empty();
}

}  // namespace

ScriptedGrpc::ScriptedGrpc(Answerer answerer)
    : answerer_(std::move(answerer)),
      server_([this](int client, const std::atomic<bool>& stop) { Serve(client, stop); }) {}

void ScriptedGrpc::Serve(int client, const std::atomic<bool>& stop) {
  Peer peer(answerer_);
  while (SendAll(client, peer.Output(), stop) && peer.open() && !stop) {
    pollfd waited{.fd = client, .events = POLLIN, .revents = 0};
    if (poll(&waited, 1, LoopbackServer::kLookMs) <= 0) continue;
    std::array<char, 16384> bytes;
    const ssize_t count = recv(client, bytes.data(), bytes.size(), 0);
    if (count <= 0 || !peer.Take({bytes.data(), static_cast<size_t>(count)})) break;
  }
}

}  // namespace mooncake::testing

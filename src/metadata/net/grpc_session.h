// HTTP/2 and gRPC's framing for unary calls, as a filter between messages and the bytes on the
// wire: it does no I/O itself, so that deadlines, interrupts and TLS stay the Stream's. By nghttp2
// rather than by the gRPC library, whose threads and descriptors do not survive a fork.
//
// Whatever bytes come, the result is a reply within the bounds or an error. Used by one thread at
// a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "mooncake/result.h"

struct nghttp2_session;  // NOLINT(readability-identifier-naming): the library's name.

namespace mooncake::metadata {

struct GrpcCall {
  std::string_view method;  // "/package.Service/Method"
  std::string_view message;
  std::string_view token;  // Goes along as the metadata "token", if it is not empty.
};

struct GrpcReply {
  int code = 0;         // gRPC's; 0: it is well.
  std::string refusal;  // Of another code: what the server says, printable.
  std::string message;  // Of code 0.
};

class GrpcSession {
 public:
  // `authority`: "host:port". A message that is larger than `reply_bytes_max` is an error.
  GrpcSession(std::string authority, bool tls, size_t reply_bytes_max);
  ~GrpcSession();
  GrpcSession(const GrpcSession&) = delete;
  GrpcSession& operator=(const GrpcSession&) = delete;

  // One call after the other, each of one message and one reply (on the wire, a stream that ends
  // after its first message is the same). kMetadata: not Ready().
  Status Begin(const GrpcCall& call);
  // What has to be sent, as far as the other side lets it go now.
  Result<std::string> TakeOutput();
  // What was received. kMetadata: what came breaks the rules or the bounds, or the server ended
  // the call, see cut(). After an error only destruction is left.
  Status AddInput(std::string_view wire);

  bool ended() const { return now_.ended; }  // The reply is there.
  // REQUIRES: ended().
  Result<GrpcReply> TakeReply();

  // Another call may begin.
  bool Ready() const;
  // The server ended the call or the connection, which is its right; another one may do.
  bool cut() const { return cut_; }
  // The server has begun as HTTP/2 wants it.
  bool greeted() const { return greeted_; }
  bool failed() const { return failed_; }

 private:
  struct Hooks;  // nghttp2's callbacks.
  struct Free {
    void operator()(nghttp2_session* session) const;
  };
  struct Exchange {
    int32_t stream = 0;
    std::string request;  // With gRPC's prefix.
    size_t sent = 0;      // Bytes of it that went into a frame.
    size_t wire_bytes = 0;
    size_t header_bytes = 0;
    std::string http_status;
    std::string content_type;
    std::string grpc_status;
    std::string grpc_message;
    std::string prefix;  // Of the reply, its first five bytes.
    std::string reply;
    bool ended = false;
  };

  Error Fail(std::string_view why);
  void TakeHeader(std::string_view name, std::string_view value);
  void TakeData(std::string_view data);
  void Break(std::string_view rule);

  const std::string authority_;
  const bool tls_;
  const size_t reply_bytes_max_;
  std::unique_ptr<nghttp2_session, Free> session_;
  Exchange now_;
  std::string broken_rule_;  // The first one that the server broke; empty: none.
  bool greeted_ = false;
  bool cut_ = false;
  bool failed_ = false;
};

}  // namespace mooncake::metadata

// One HTTP/1.1 connection that POSTs JSON, for etcd's gateway. Used by one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "metadata/etcd/etcd_url.h"
#include "metadata/net/stream.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

namespace mooncake::metadata {

struct HttpAnswer {
  int status = 0;
  std::string body;
  bool closes = false;  // The server ends the connection after this answer.
};

class HttpConnection {
 public:
  // `end_by_ms`: as of Stream; it outlives the connection.
  HttpConnection(const EtcdEndpoint& endpoint, const std::atomic<uint64_t>& end_by_ms,
                 Runtime& runtime);

  Status Connect(const std::optional<TlsOptions>& tls, uint64_t deadline_ms);
  // Any answer is a success, whatever its status. kMetadata: the connection failed or what came
  // is no answer; only destruction is left then. `token`: the Authorization header, if any.
  Result<HttpAnswer> Post(std::string_view path, std::string_view token, std::string_view body,
                          uint64_t deadline_ms);

  bool broken() const { return stream_.broken(); }  // As of Stream.
  bool Idle() const { return stream_.Idle(); }

 private:
  // What was received and not used yet is in buffer_. Each fills it up as far as it needs.
  Result<std::string> ReadLine(uint64_t deadline_ms);
  Status ReadInto(std::string& body, uint64_t count, uint64_t deadline_ms);
  Status ReadChunks(std::string& body, uint64_t deadline_ms);
  Status Fill(uint64_t deadline_ms);
  Error Unreadable(std::string_view why) const;

  const EtcdEndpoint endpoint_;
  Stream stream_;
  std::string buffer_;
};

}  // namespace mooncake::metadata

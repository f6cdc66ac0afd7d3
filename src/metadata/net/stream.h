// A TCP connection to a metadata service, with TLS when asked. Every wait ends at its deadline,
// or earlier when the process is interrupted, and nothing raises a signal.
//
// Used by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "metadata/net/tls.h"
#include "mooncake/result.h"
#include "runtime/runtime.h"

struct addrinfo;  // NOLINT(readability-identifier-naming): the system's name.

namespace mooncake::metadata {

class Stream {
 public:
  // `name` begins every error message. `end_by_ms` ends every wait too, and may move meanwhile.
  Stream(std::string name, const std::atomic<uint64_t>& end_by_ms, Runtime& runtime);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Deadlines are on the scale of Runtime::NowMs. Errors: kMetadata says what happened;
  // kTransport: the process was interrupted; kInvalidArgument: a file of `tls` is of no use.
  // After any of them only destruction is left.
  Status Connect(const std::string& host, uint16_t port, const std::optional<TlsOptions>& tls,
                 uint64_t deadline_ms);
  Status Send(std::string_view bytes, uint64_t deadline_ms);
  // At least one byte. The end of the stream is an error.
  Result<size_t> Receive(std::span<char> into, uint64_t deadline_ms);
  // What is there already; 0: nothing. It does not wait.
  Result<size_t> ReceiveReady(std::span<char> into);

  // After an error: the other side closed the connection, so another one may do. False for a
  // server that is silent or refuses: the next one would cost as much and do no better.
  bool broken() const { return broken_; }
  // Whether an unused connection still looks usable, without asking the server.
  bool Idle() const;

 private:
  Status ConnectTo(const addrinfo& address, uint64_t deadline_ms);
  Status StartTls(const TlsOptions& options, const std::string& host, uint64_t deadline_ms);
  Status SendWire(std::string_view bytes, uint64_t deadline_ms);
  Result<size_t> ReceivePlain(std::span<char> into, std::optional<uint64_t> deadline_ms);
  // Without a deadline it does not wait: 0 is nothing.
  Result<size_t> ReceiveWire(std::span<char> into, std::optional<uint64_t> deadline_ms);
  Status Wait(short events, uint64_t deadline_ms);
  // In slices; `came` waits through one and says whether it is over.
  Status WaitFor(std::string_view what, uint64_t deadline_ms,
                 const std::function<bool(uint64_t until_ms)>& came);
  Error Fail(bool broken, std::string_view why);

  const std::string name_;
  const std::atomic<uint64_t>& end_by_ms_;
  Runtime& runtime_;
  std::unique_ptr<Tls> tls_;
  int fd_ = -1;
  uint64_t waited_from_ms_ = 0;  // When the present operation began.
  bool broken_ = false;
};

}  // namespace mooncake::metadata

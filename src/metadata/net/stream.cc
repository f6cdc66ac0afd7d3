#include "metadata/net/stream.h"

#include <errno.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "metadata/net/lookup.h"

namespace mooncake::metadata {
namespace {

// How long a wait goes on before it asks whether the process was interrupted.
constexpr uint64_t kInterruptCheckMs = 100;
constexpr size_t kWireBytes = size_t{16} << 10;
constexpr size_t kStepsMax = size_t{1} << 20;  // Of one TLS operation; each moves bytes.

}  // namespace

Stream::Stream(std::string name, const std::atomic<uint64_t>& end_by_ms, Runtime& runtime)
    : name_(std::move(name)), end_by_ms_(end_by_ms), runtime_(runtime) {}

Stream::~Stream() {
  if (fd_ >= 0) close(fd_);
}

Error Stream::Fail(bool broken, std::string_view why) {
  broken_ = broken;
  return MetadataError(fmt::format("{}: {}", name_, why));
}

Status Stream::Connect(const std::string& host, uint16_t port, const std::optional<TlsOptions>& tls,
                       uint64_t deadline_ms) {
  waited_from_ms_ = runtime_.NowMs();
  const auto failed = [&](const Error& error) {
    return Fail(false, fmt::format("cannot connect: {}", error.context));
  };
  const auto lookup = Lookup::Start(host, port, runtime_);
  if (!lookup) return failed(lookup.error());
  if (!(*lookup)->WaitUntil(0)) {
    MC_RETURN_IF_ERROR(WaitFor("answer of the resolver", deadline_ms,
                               [&](uint64_t until_ms) { return (*lookup)->WaitUntil(until_ms); }));
  }
  const Result<const addrinfo*> found = (*lookup)->Found();
  if (!found) return failed(found.error());
  Status status = Ok();
  for (const addrinfo* address = *found; address != nullptr; address = address->ai_next) {
    status = ConnectTo(*address, deadline_ms);
    if (status.ok() || status.code() == ErrorCode::kTransport) break;
  }
  MC_RETURN_IF_ERROR(std::move(status));
  if (tls) return StartTls(*tls, host, deadline_ms);
  return Ok();
}

Status Stream::ConnectTo(const addrinfo& address, uint64_t deadline_ms) {
  if (fd_ >= 0) close(fd_);
  fd_ = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd_ < 0) return Fail(false, fmt::format("cannot connect: {}", std::strerror(errno)));
  const int on = 1;
  setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  if (connect(fd_, address.ai_addr, address.ai_addrlen) == 0) return Ok();
  int error = errno;
  if (error == EINPROGRESS) {
    MC_RETURN_IF_ERROR(Wait(POLLOUT, deadline_ms));
    socklen_t size = sizeof error;
    getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);
  }
  if (error == 0) return Ok();
  return Fail(false, fmt::format("cannot connect: {}", std::strerror(error)));
}

Status Stream::StartTls(const TlsOptions& options, const std::string& host, uint64_t deadline_ms) {
  MC_TRY(tls_, Tls::New(options, host));
  std::array<char, kWireBytes> wire;
  for (size_t step = 0; step < kStepsMax; ++step) {
    const Result<Tls::Want> want = tls_->Handshake();
    // Also when it failed: the server wants to know why.
    const Status sent = SendWire(tls_->TakeOutput(), deadline_ms);
    if (!want) return Fail(false, want.error().context);
    MC_RETURN_IF_ERROR(sent);
    if (*want == Tls::Want::kNothing) return Ok();
    const Result<size_t> count = ReceiveWire(wire, deadline_ms);
    if (!count && broken_) return Fail(true, "the connection broke in the TLS handshake");
    MC_RETURN_IF_ERROR(count);
    tls_->AddInput({wire.data(), *count});
  }
  return Fail(false, "the TLS handshake does not end");
}

Status Stream::Wait(short events, uint64_t deadline_ms) {
  pollfd waited{.fd = fd_, .events = events, .revents = 0};
  return WaitFor("answer", deadline_ms, [&](uint64_t until_ms) {
    const uint64_t now_ms = runtime_.NowMs();
    return poll(&waited, 1, static_cast<int>(until_ms - std::min(until_ms, now_ms))) > 0;
  });
}

Status Stream::WaitFor(std::string_view what, uint64_t deadline_ms,
                       const std::function<bool(uint64_t until_ms)>& came) {
  uint64_t now_ms = runtime_.NowMs();
  for (; true; now_ms = runtime_.NowMs()) {
    const uint64_t limit_ms = std::min(deadline_ms, end_by_ms_.load(std::memory_order_relaxed));
    if (now_ms >= limit_ms) break;
    if (runtime_.Interrupted()) {
      broken_ = false;
      return TransportError(fmt::format("{}: interrupted", name_));
    }
    if (came(std::min(limit_ms, now_ms + kInterruptCheckMs))) return Ok();
  }
  return Fail(false, fmt::format("no {} within {} ms", what, now_ms - waited_from_ms_));
}

Status Stream::Send(std::string_view bytes, uint64_t deadline_ms) {
  waited_from_ms_ = runtime_.NowMs();
  if (tls_ == nullptr) return SendWire(bytes, deadline_ms);
  if (Status taken = tls_->Encrypt(bytes); !taken) return Fail(false, taken.error().context);
  return SendWire(tls_->TakeOutput(), deadline_ms);
}

Status Stream::SendWire(std::string_view bytes, uint64_t deadline_ms) {
  while (!bytes.empty()) {  // Until the deadline that Wait keeps.
    const ssize_t count = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (count > 0) {
      bytes.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
      MC_RETURN_IF_ERROR(Wait(POLLOUT, deadline_ms));
    } else {
      return Fail(true, fmt::format("the connection broke: {}", std::strerror(errno)));
    }
  }
  return Ok();
}

Result<size_t> Stream::Receive(std::span<char> into, uint64_t deadline_ms) {
  waited_from_ms_ = runtime_.NowMs();
  return ReceivePlain(into, deadline_ms);
}

Result<size_t> Stream::ReceiveReady(std::span<char> into) {
  return ReceivePlain(into, std::nullopt);
}

Result<size_t> Stream::ReceivePlain(std::span<char> into, std::optional<uint64_t> deadline_ms) {
  if (tls_ == nullptr) return ReceiveWire(into, deadline_ms);
  std::array<char, kWireBytes> wire;
  for (size_t step = 0; step < kStepsMax; ++step) {
    size_t count = 0;
    const Result<Tls::Want> want = tls_->Decrypt(into, count);
    if (!want) return Fail(false, want.error().context);
    if (*want == Tls::Want::kEnd) return Fail(true, "the server closed the connection");
    MC_RETURN_IF_ERROR(SendWire(tls_->TakeOutput(), deadline_ms.value_or(0)));
    if (*want == Tls::Want::kNothing) return count;
    MC_TRY(const size_t received, ReceiveWire(wire, deadline_ms));
    if (received == 0) return received;
    tls_->AddInput({wire.data(), received});
  }
  return Fail(false, "the TLS stream carries nothing");
}

Result<size_t> Stream::ReceiveWire(std::span<char> into, std::optional<uint64_t> deadline_ms) {
  while (true) {  // Until the deadline that Wait keeps.
    const ssize_t count = recv(fd_, into.data(), into.size(), 0);
    if (count > 0) return static_cast<size_t>(count);
    if (count == 0) return Fail(true, "the server closed the connection");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      return Fail(true, fmt::format("the connection broke: {}", std::strerror(errno)));
    }
    if (!deadline_ms) return size_t{0};
    MC_RETURN_IF_ERROR(Wait(POLLIN, *deadline_ms));
  }
}

bool Stream::Idle() const {
  if (tls_ != nullptr && tls_->HasInput()) return false;
  pollfd waited{.fd = fd_, .events = POLLIN, .revents = 0};
  // Anything readable is the end of the stream, or bytes that nobody asked for.
  return poll(&waited, 1, 0) == 0;
}

}  // namespace mooncake::metadata

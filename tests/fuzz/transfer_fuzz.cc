// Frames of the tcp transport, as a server and as a client meet them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "fuzz/fuzz.h"
#include "runtime/real_runtime.h"
#include "support/manual_runtime.h"
#include "transfer/tcp/client_call.h"
#include "transfer/tcp/server_connection.h"

namespace mooncake::transfer {
namespace {

using fuzz::Format;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using fuzz::WrongError;
using testing::ManualRuntime;

template <typename T>
std::string WireOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string FrameOf(const std::string& message, const std::string& payload, bool reply,
                    uint64_t id = 1) {
  FrameHeader header;
  header.type = 3;
  header.flags = reply ? kFrameReply : 0;
  header.message_size = static_cast<uint32_t>(message.size());
  header.payload_size = payload.size();
  header.request_id = id;
  return WireOf(header) + message + payload;
}

// Numbers within the heads of a stream of frames.
std::string WithOtherHead(std::string wire, size_t head, Random& random) {
  const uint64_t number = random.Extreme();
  const size_t at = head + 4 * random.Below(sizeof(FrameHeader) / 4);
  if (at + sizeof number <= wire.size()) std::memcpy(wire.data() + at, &number, sizeof number);
  return wire;
}

// Takes payloads of up to kTakenMax bytes and says what came back.
class EchoService final : public Service {
 public:
  static constexpr uint64_t kTakenMax = 4096;
  std::unique_ptr<ServerCall> Accept(const IncomingRequest& request) override {
    if (request.payload_size > kTakenMax) return nullptr;
    return std::make_unique<Echo>(request);
  }

 private:
  class Echo final : public ServerCall {
   public:
    explicit Echo(const IncomingRequest& request)
        : message_(request.message), payload_(request.payload_size), target_(payload_) {}
    bool Prepare(bool) override { return true; }
    std::span<const MutableBytes> PayloadTargets() override { return {&target_, 1}; }
    bool Run(bool, Reply& reply) override {
      reply.message = message_;
      reply.payload = {payload_};
      return true;
    }

   private:
    std::string message_;
    std::vector<std::byte> payload_;
    MutableBytes target_;
  };
};

struct SocketPair {
  SocketPair() {
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) != 0) abort();
  }
  ~SocketPair() {
    if (fds[1] >= 0) close(fds[1]);
  }
  int fds[2];  // The first is for whom it is lent to, who closes it.
};

// All that has come by now.
std::string TakeAll(int fd) {
  std::string all;
  char chunk[4096];
  for (ssize_t got = 1; got > 0;) {
    got = recv(fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (got > 0) all.append(chunk, static_cast<size_t>(got));
  }
  return all;
}

// What a server says: its hello, with a secret perhaps a verdict, then replies to frames.
std::string WrongServerWords(const std::string& wire, bool secret) {
  if (wire.empty()) return kRight;
  MC_FUZZ_CHECK(wire.size() >= sizeof(Hello));
  const auto hello = ReadWire<Hello>(wire);
  MC_FUZZ_CHECK(hello.magic == kHelloMagic && hello.major == kProtocolMajor);
  MC_FUZZ_CHECK(((hello.flags & kHelloHasSecret) != 0) == secret);
  std::string_view rest = std::string_view(wire).substr(sizeof(Hello));
  if (secret) {  // Nobody guesses it.
    MC_FUZZ_CHECK(rest.empty() || rest.size() == sizeof(Verdict));
    MC_FUZZ_CHECK(rest.empty() || ReadWire<Verdict>(rest).verdict == HelloVerdict::kSecret);
    return kRight;
  }
  while (!rest.empty()) {
    MC_FUZZ_CHECK(rest.size() >= sizeof(FrameHeader));
    const auto header = ReadWire<FrameHeader>(rest);
    MC_FUZZ_CHECK(IsSane(header, true) && header.payload_size <= EchoService::kTakenMax);
    const uint64_t size = sizeof header + header.message_size + header.payload_size;
    MC_FUZZ_CHECK(rest.size() >= size);
    rest.remove_prefix(size);
  }
  return kRight;
}

std::string FeedServer(const std::string& input, const TcpOptions& options) {
  ManualRuntime runtime;
  EchoService service;
  ServerContext context(runtime, options, nullptr, &service);
  context.connections = 1;
  SocketPair sockets;
  std::string said;
  {
    ServerConnection connection(context, UniqueFd(sockets.fds[0]), runtime.NowMs());
    Random pieces(input.size());
    auto next = ServerConnection::Next::kRead;
    for (size_t at = 0; at < input.size() && next != ServerConnection::Next::kClose;) {
      const size_t size = std::min(input.size() - at, 1 + pieces.Below(2000));
      const ssize_t sent = send(sockets.fds[1], input.data() + at, size, MSG_NOSIGNAL);
      at += sent > 0 ? static_cast<size_t>(sent) : 0;
      for (int turn = 0; turn < 50; ++turn) {  // As long as it has something to do.
        next = connection.OnReady(runtime.NowMs());
        MC_FUZZ_CHECK(next != ServerConnection::Next::kWorker);
        const std::string more = TakeAll(sockets.fds[1]);
        said += more;
        if (next == ServerConnection::Next::kClose || (more.empty() && turn > 0)) break;
      }
    }
    // However it stands there, it does not stay for ever.
    runtime.Advance(kTimeLeftMsMax + options.idle_ms);
    MC_FUZZ_CHECK(connection.Expired(runtime.NowMs()) || next == ServerConnection::Next::kClose);
  }
  MC_FUZZ_CHECK(context.connections == 0);
  return WrongServerWords(said + TakeAll(sockets.fds[1]), !options.secret.empty());
}

std::vector<std::string> RequestSamples(const Hello& hello) {
  const std::string greeting = WireOf(hello);
  return {greeting + FrameOf("e hello", "payload", false),
          greeting + FrameOf("", "", false) + FrameOf("second", std::string(3000, 'p'), false, 2),
          greeting + FrameOf(std::string(1000, 'm'), "", false)};
}

TEST(TransferFuzz, AServerAnswersInWholeFramesOrCloses) {
  const TcpOptions options;
  const std::vector<std::string> samples = RequestSamples({});
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check = [&](const std::string& input) { return FeedServer(input, options); },
             .make =
                 [&](Random& random) {
                   if (random.OneIn(2)) return InputFrom(samples, Format::kBinary, random);
                   return WithOtherHead(random.Of(samples), sizeof(Hello), random);
                 }});
}

TEST(TransferFuzz, AServerWithASecretTellsNothingToThoseWhoGuess) {
  const TcpOptions options{.secret = "s3cret"};
  Hello hello;
  hello.flags = kHelloHasSecret;
  std::vector<std::string> samples = RequestSamples(hello);
  samples.push_back(WireOf(hello) + std::string(kProofSize, 'p') + FrameOf("e", "", false));
  samples.push_back(WireOf(Hello()) + FrameOf("e", "", false));
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check = [&](const std::string& input) { return FeedServer(input, options); },
             .cost = 2});
}

// Takes whatever reply there is.
class AnyReply final : public CallObserver {
 public:
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override {
    message_size = message.size();
    if (payload_size > EchoService::kTakenMax) return TransportError("too much");
    memory_.resize(payload_size);
    target_ = memory_;
    return std::span<const MutableBytes>(&target_, 1);
  }
  size_t message_size = 0;

 private:
  std::vector<std::byte> memory_;
  MutableBytes target_;
};

// A client that connects to a listener of ours, which answers with the input whatever it is asked.
class AnsweredClient {
 public:
  explicit AnsweredClient(std::string secret) : options_{.secret = std::move(secret)} {
    uint16_t port = 0;
    auto listener = ListenOn("127.0.0.1", port, 0);
    if (!listener.ok()) abort();
    listener_ = *std::move(listener);
    endpoint_ = "127.0.0.1:" + std::to_string(port);
  }

  std::string Check(const std::string& input) {
    ClientContext context(runtime_, options_, nullptr);
    AnyReply observer;
    Call call{.endpoint = endpoint_, .type = 3, .message = "ask", .observer = &observer};
    UniqueFd peer;
    ClientCall running(context, call);
    bool done = running.Start(runtime_.NowMs()).wait == ClientCall::Wait::kDone;
    for (int step = 0; step < 500 && !done; ++step) {
      if (!peer.valid()) {
        peer = UniqueFd(accept(listener_.get(), nullptr, nullptr));
        if (peer.valid()) Answer(peer.get(), input);
      }
      done = running.Advance(MSG_DONTWAIT).wait == ClientCall::Wait::kDone;
    }
    MC_FUZZ_CHECK(done);
    if (call.status.ok()) {
      MC_FUZZ_CHECK(options_.secret.empty() && observer.message_size <= input.size());
      return kRight;
    }
    MC_FUZZ_CHECK(call.failure != CallFailure::kNone);
    return WrongError(call.status.error(), ErrorCode::kTransport, "");
  }

 private:
  static void Answer(int fd, const std::string& input) {
    (void)send(fd, input.data(), input.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    (void)shutdown(fd, SHUT_WR);
  }

  const TcpOptions options_;
  runtime::RealRuntime runtime_;
  UniqueFd listener_;
  std::string endpoint_;
};

TEST(TransferFuzz, AClientTakesTheReplyToItsRequestOrFails) {
  AnsweredClient client("");
  const std::vector<std::string> samples = {
      WireOf(Hello()) + FrameOf("answer", "payload", true), WireOf(Hello()) + FrameOf("", "", true),
      WireOf(Hello{.verdict = HelloVerdict::kSecret}),
      WireOf(Hello{.flags = kHelloHasSecret}) + std::string(sizeof(Verdict), 'v')};
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check = [&](const std::string& input) { return client.Check(input); },
             .make =
                 [&](Random& random) {
                   if (random.OneIn(2)) return InputFrom(samples, Format::kBinary, random);
                   return WithOtherHead(samples[random.Below(2)], sizeof(Hello), random);
                 },
             .cost = 8});
}

TEST(TransferFuzz, AClientWithASecretTrustsNobodyWhoGuesses) {
  AnsweredClient client("s3cret");
  const std::string hello = WireOf(Hello{.flags = kHelloHasSecret});
  RunTarget({.samples = {hello + std::string(sizeof(Verdict), '\0') + FrameOf("a", "", true),
                         WireOf(Hello()) + FrameOf("answer", "", true)},
             .format = Format::kBinary,
             .check = [&](const std::string& input) { return client.Check(input); },
             .cost = 16});
}

}  // namespace
}  // namespace mooncake::transfer

// What the serving side does with peers that do not behave.
#include <sys/resource.h>
#include <sys/socket.h>

#include <random>

#include "runtime/real_runtime.h"
#include "transfer/tcp/auth.h"
#include "transfer/tcp/tcp_transport.h"
#include "unit/transfer/contract.h"
#include "unit/transfer/raw_socket.h"
#include "unit/transfer/test_service.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStallMs = 200;

class TcpServerTest : public testing::Test {
 protected:
  void Start(TcpOptions options = {.stall_ms = kStallMs}) {
    transport_ = std::make_unique<TcpTransport>(runtime_, std::move(options));
    endpoint_ = transport_->Listen("127.0.0.1", 0, &service_).value();
  }
  bool Eventually(const std::function<bool()>& condition) {
    for (int i = 0; i < 1'000 && !condition(); ++i) runtime_.SleepMs(5);
    return condition();
  }
  bool Serves() {
    TcpTransport client(runtime_, {.secret = secret_});
    TestCallSpec spec(endpoint_, "echo", 100);
    return CallOne(client, spec).status.ok() && spec.observer.payload == spec.bytes;
  }

  runtime::RealRuntime runtime_;
  TestService service_{runtime_};
  std::unique_ptr<TcpTransport> transport_;
  std::string endpoint_;
  std::string secret_;
};

std::string HelloBytes() { return WireBytes(Hello()); }

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + t.tv_usec * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST_F(TcpServerTest, ClosesConnectionsThatSendGarbage) {
  Start();
  ASSERT_TRUE(Serves());
  runtime_.SleepMs(20);
  const size_t before = OpenDescriptors();
  std::mt19937_64 random(7);
  for (int i = 0; i < 200; ++i) {
    std::string garbage(8 + random() % 5'000, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    // Half of them get past the hello, a quarter past the frame's magic.
    if (i % 2 == 0) garbage = HelloBytes() + garbage;
    if (i % 4 == 0) {
      const uint32_t magic = kFrameMagic;
      garbage.replace(sizeof(Hello), 4, WireBytes(magic));
    }
    RawSocket socket(endpoint_);
    socket.Send(garbage);
    if (garbage.size() <= 300) continue;  // May be the beginning of something.
    EXPECT_TRUE(socket.IsClosedByPeer()) << i;
  }
  EXPECT_TRUE(Eventually([&] { return OpenDescriptors() == before; }));
  EXPECT_TRUE(Serves());
  const double cpu = CpuSeconds();
  runtime_.SleepMs(200);
  EXPECT_LT(CpuSeconds() - cpu, 0.05);
}

TEST_F(TcpServerTest, AllocatesNothingForALengthAlone) {
  Start();
  for (FrameHeader header : {RequestHeader(~0u, 0), RequestHeader(kMessageSizeMax + 1, 0),
                             RequestHeader(4, ~0ull), RequestHeader(4, kPayloadSizeMax + 1)}) {
    RawSocket socket(endpoint_);
    ASSERT_TRUE(socket.Send(HelloBytes() + WireBytes(header) + "echo"));
    EXPECT_TRUE(socket.IsClosedByPeer());
  }
  // The largest message that is allowed: memory grows only with what arrives.
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 100; ++i) {
    sockets.emplace_back(endpoint_);
    ASSERT_TRUE(sockets.back().Send(HelloBytes() + WireBytes(RequestHeader(kMessageSizeMax, 0))));
  }
  EXPECT_EQ(service_.accepted(), 0);
  EXPECT_TRUE(Serves());
}

TEST_F(TcpServerTest, ClosesSlowSenders) {
  Start();
  RawSocket nothing(endpoint_), half_hello(endpoint_), half_frame(endpoint_), payload(endpoint_);
  const std::string hello = HelloBytes(), header = WireBytes(RequestHeader(4, 0));
  half_hello.Send(std::string_view(hello).substr(0, 20));
  half_frame.Send(hello);
  half_frame.Send(std::string_view(header).substr(0, 30));
  payload.Send(HelloBytes() + WireBytes(RequestHeader(4, 1'000'000)) + "echo half");
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 1; }));
  EXPECT_TRUE(nothing.IsClosedByPeer());
  EXPECT_TRUE(half_hello.IsClosedByPeer());
  EXPECT_TRUE(half_frame.IsClosedByPeer());
  EXPECT_TRUE(payload.IsClosedByPeer());
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 0; }));
}

TEST_F(TcpServerTest, ATrickleDoesNotProlongTheHandshake) {
  Start();
  RawSocket socket(endpoint_);
  const std::string hello = HelloBytes();
  const uint64_t start_ms = runtime_.NowMs();
  for (size_t i = 0; i < hello.size() && socket.Send({&hello[i], 1}); ++i) {
    runtime_.SleepMs(kStallMs / 5);
  }
  EXPECT_TRUE(socket.IsClosedByPeer());
  EXPECT_LT(runtime_.NowMs() - start_ms, 10 * kStallMs);
}

TEST_F(TcpServerTest, EndsTheCallOfAPeerThatLeaves) {
  Start({.stall_ms = 60'000});
  const std::string half = HelloBytes() + WireBytes(RequestHeader(4, 1'000'000)) + "put half";
  RawSocket gone(endpoint_);
  gone.Send(half);
  ASSERT_TRUE(Eventually([&] { return service_.live_calls() == 1; }));
  gone.Close();
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 0; }));
  // One that does not read its reply, and then leaves.
  RawSocket deaf(endpoint_);
  deaf.Send(HelloBytes() + WireBytes(RequestHeader(10, 0)) + "g 20000000");
  ASSERT_TRUE(Eventually([&] { return service_.live_calls() == 1; }));
  deaf.Close();
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 0; }));
}

TEST_F(TcpServerTest, ServesRequestsSentBackToBack) {
  Start();
  RawSocket socket(endpoint_);
  std::string bytes = HelloBytes();
  for (uint64_t id = 1; id <= 300; ++id) {
    FrameHeader header = RequestHeader(4, 3);
    header.request_id = id;
    bytes += WireBytes(header);
    bytes += id % 5 == 0 ? "blocabc" : "echoabc";
  }
  ASSERT_TRUE(socket.Send(bytes));
  EXPECT_EQ(socket.Receive(sizeof(Hello)).size(), sizeof(Hello));
  for (uint64_t id = 1; id <= 300; ++id) {
    const std::string reply = socket.Receive(sizeof(FrameHeader) + 7);
    ASSERT_EQ(reply.size(), sizeof(FrameHeader) + 7);
    EXPECT_EQ(ReadWire<FrameHeader>(reply).request_id, id);
    EXPECT_EQ(reply.substr(sizeof(FrameHeader) + 4), "abc");
  }
}

TEST_F(TcpServerTest, BoundsTheNumberOfConnections) {
  Start({.stall_ms = 60'000, .connections_max = 8});
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 8; ++i) {
    sockets.emplace_back(endpoint_);
    ASSERT_TRUE(sockets.back().Send(HelloBytes() + WireBytes(RequestHeader(4, 0)) + "echo"));
    ASSERT_FALSE(sockets.back().Receive(sizeof(Hello)).empty());
  }
  RawSocket surplus(endpoint_);
  EXPECT_TRUE(surplus.IsClosedByPeer());
  sockets.clear();
  EXPECT_TRUE(Eventually([&] { return Serves(); }));
}

TEST_F(TcpServerTest, SilentConnectionsKeepNobodyOut) {
  Start({.stall_ms = 60'000, .connections_max = 8, .spare_ms = 50});
  const size_t before = OpenDescriptors();
  std::vector<RawSocket> silent;
  const std::string request = HelloBytes() + WireBytes(RequestHeader(4, 0)) + "echo";
  for (const std::string& said : {std::string(), HelloBytes(), request}) {
    for (int i = 0; i < 40; ++i) {
      silent.emplace_back(endpoint_);
      silent.back().Send(said);
    }
    EXPECT_LE(OpenDescriptors(), before + silent.size() + 8 + 1);
    bool served = false;  // Once the latest have been silent for long enough, too.
    for (int i = 0; i < 1'000 && !served; ++i) {
      runtime_.SleepMs(5);
      served = Serves();
    }
    EXPECT_TRUE(served) << said.size();
  }
}

// The first loop asks the other one, each time, as none of its own connections is silent.
TEST_F(TcpServerTest, EachNewcomerGetsThePlaceOfASilentConnection) {
  constexpr uint64_t kSpareMs = 200;
  Start({.stall_ms = 60'000, .connections_max = 8, .spare_ms = kSpareMs});
  const std::string echo = WireBytes(RequestHeader(4, 0)) + "echo";
  std::vector<RawSocket> sockets;
  for (int i = 0; i < 8; ++i) {
    sockets.emplace_back(endpoint_);
    ASSERT_TRUE(sockets.back().Send(HelloBytes() + echo));
    ASSERT_EQ(sockets.back().Receive(sizeof(Hello)).size(), sizeof(Hello));
  }
  runtime_.SleepMs(2 * kSpareMs);
  for (int i = 0; i < 3; ++i) {
    for (size_t s = 0; s < sockets.size(); s += 2) sockets[s].Send(echo);
    runtime_.SleepMs(5);
    RawSocket newcomer(endpoint_);
    ASSERT_TRUE(newcomer.Send(HelloBytes() + echo));
    EXPECT_EQ(newcomer.Receive(sizeof(Hello)).size(), sizeof(Hello)) << i;
    sockets.push_back(std::move(newcomer));
  }
}

TEST_F(TcpServerTest, LeavesHalfOfTheDescriptorsToTheProgram) {
  rlimit old;
  getrlimit(RLIMIT_NOFILE, &old);
  const rlimit tight = {OpenDescriptors() + 20, old.rlim_max};
  setrlimit(RLIMIT_NOFILE, &tight);
  Start({.stall_ms = 60'000, .spare_ms = 60'000});
  setrlimit(RLIMIT_NOFILE, &old);
  std::vector<RawSocket> sockets;
  for (size_t i = 0; i < tight.rlim_cur / 2; ++i) {
    sockets.emplace_back(endpoint_);
    ASSERT_TRUE(sockets.back().Send(HelloBytes() + WireBytes(RequestHeader(4, 0)) + "echo"));
    ASSERT_FALSE(sockets.back().Receive(sizeof(Hello)).empty());
  }
  EXPECT_TRUE(RawSocket(endpoint_).IsClosedByPeer());
}

TEST_F(TcpServerTest, ClosesSoonWhoSaysHelloAndNothingElse) {
  Start({.stall_ms = kStallMs, .idle_ms = 600'000});
  RawSocket socket(endpoint_);
  ASSERT_TRUE(socket.Send(HelloBytes()));
  EXPECT_TRUE(socket.IsClosedByPeer());
}

TEST_F(TcpServerTest, ATrickleDoesNotProlongAFrame) {
  Start();
  RawSocket socket(endpoint_);
  ASSERT_TRUE(socket.Send(HelloBytes() + WireBytes(RequestHeader(kMessageSizeMax, 0))));
  bool open = true;
  for (int i = 0; i < 200 && open; ++i) {
    open = socket.Send("x");
    runtime_.SleepMs(kStallMs / 5);
  }
  EXPECT_FALSE(open);
}

TEST_F(TcpServerTest, ClosesIdleConnections) {
  Start({.stall_ms = 60'000, .idle_ms = 100});
  RawSocket socket(endpoint_);
  ASSERT_TRUE(socket.Send(HelloBytes() + WireBytes(RequestHeader(4, 0)) + "echo"));
  EXPECT_TRUE(socket.IsClosedByPeer());
}

TEST_F(TcpServerTest, DoesNotSpinWithoutDescriptors) {
  Start();
  ASSERT_TRUE(Serves());
  runtime_.SleepMs(100);  // The server lets go of that connection.
  rlimit old;
  getrlimit(RLIMIT_NOFILE, &old);
  rlimit tight = {OpenDescriptors() + 10, old.rlim_max};
  setrlimit(RLIMIT_NOFILE, &tight);
  std::vector<UniqueFd> fill;
  for (;;) {
    fill.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fill.back().valid()) break;
  }
  fill.pop_back();
  // One for the connecting end; none is left for the accepting one.
  fill.pop_back();
  RawSocket refused(endpoint_);
  const double cpu = CpuSeconds();
  runtime_.SleepMs(400);
  EXPECT_LT(CpuSeconds() - cpu, 0.1);
  fill.clear();
  setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_TRUE(Eventually([&] { return Serves(); }));
}

TEST_F(TcpServerTest, ClosesWithinASecondWhateverIsOpen) {
  Start({.stall_ms = 60'000});
  RawSocket idle(endpoint_), half(endpoint_), served(endpoint_);
  half.Send(HelloBytes() + WireBytes(RequestHeader(4, 1'000'000)) + "put half");
  served.Send(HelloBytes() + WireBytes(RequestHeader(10, 0)) + "g 20000000");
  ASSERT_TRUE(Eventually([&] { return service_.live_calls() == 2; }));
  const uint64_t start_ms = runtime_.NowMs();
  transport_->Close();
  EXPECT_LT(runtime_.NowMs() - start_ms, 1'000u);
  EXPECT_EQ(service_.live_calls(), 0);
  EXPECT_TRUE(idle.IsClosedByPeer());
}

TEST_F(TcpServerTest, LetsNobodyInWithoutTheSecret) {
  secret_ = "ours";
  Start({.stall_ms = kStallMs, .secret = secret_});
  Hello hello;
  hello.flags = kHelloHasSecret;
  RawSocket forger(endpoint_);
  ASSERT_TRUE(forger.Send(WireBytes(hello)));
  ASSERT_EQ(forger.Receive(sizeof(Hello)).size(), sizeof(Hello));
  ASSERT_TRUE(forger.Send(std::string(kProofSize, 'x') + WireBytes(RequestHeader(4, 0)) + "echo"));
  const auto verdict = ReadWire<Verdict>(forger.Receive(sizeof(Verdict)));
  EXPECT_EQ(verdict.verdict, HelloVerdict::kSecret);
  EXPECT_TRUE(forger.IsClosedByPeer());
  RawSocket open(endpoint_);
  ASSERT_TRUE(open.Send(HelloBytes() + WireBytes(RequestHeader(4, 0)) + "echo"));
  EXPECT_EQ(ReadWire<Hello>(open.Receive(sizeof(Hello))).verdict, HelloVerdict::kSecret);
  EXPECT_TRUE(open.IsClosedByPeer());
  EXPECT_EQ(service_.accepted(), 0);
  EXPECT_TRUE(Serves());
}

}  // namespace
}  // namespace mooncake::transfer

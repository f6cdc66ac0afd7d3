// What the calling side does with peers and connections that fail.
#include <sys/socket.h>

#include "obs/metrics.h"
#include "runtime/real_runtime.h"
#include "transfer/tcp/tcp_transport.h"
#include "unit/transfer/contract.h"
#include "unit/transfer/raw_socket.h"
#include "unit/transfer/test_service.h"

namespace mooncake::transfer {
namespace {

constexpr uint64_t kStallMs = 200;

class TcpClientTest : public testing::Test {
 protected:
  // Runs a call against a listener whose side of it is `serve`.
  Call CallAgainst(TestCallSpec& spec, const std::function<void(RawListener&)>& serve,
                   std::string secret = "") {
    TcpTransport client(runtime_, {.stall_ms = kStallMs, .secret = std::move(secret)});
    spec.endpoint = listener_.endpoint();
    Call call;
    auto thread = runtime_.Spawn("caller", [&] { call = CallOne(client, spec); });
    serve(listener_);
    thread->Join();
    return call;
  }

  static std::string ReplyBytes(uint32_t message_size, uint64_t payload_size, uint64_t id = 1) {
    FrameHeader header = RequestHeader(message_size, payload_size);
    header.flags = kFrameReply;
    header.request_id = id;
    return WireBytes(header);
  }

  runtime::RealRuntime runtime_;
  RawListener listener_;
};

TEST_F(TcpClientTest, ReplacesAConnectionThatDiedWhileItRested) {
  TestService service(runtime_);
  TcpTransport server(runtime_, {.idle_ms = 50});
  const std::string endpoint = server.Listen("127.0.0.1", 0, &service).value();
  TcpTransport client(runtime_, {});
  for (int i = 0; i < 4; ++i) {
    TestCallSpec spec(endpoint, "echo", 100'000);
    ASSERT_TRUE(CallOne(client, spec).status.ok()) << i;
    EXPECT_EQ(spec.observer.payload, spec.bytes);
    runtime_.SleepMs(i < 2 ? 150 : 350);  // Below and above what is trusted without a look.
  }
}

TEST_F(TcpClientTest, RestartsOnceOnAFreshConnection) {
  TcpTransport client(runtime_, {.stall_ms = kStallMs});
  TestCallSpec first(listener_.endpoint(), "echo"), second(listener_.endpoint(), "echo", 1'000);
  Call calls[2];
  auto thread = runtime_.Spawn("caller", [&] {
    calls[0] = CallOne(client, first);
    calls[1] = CallOne(client, second);
  });
  const size_t request_size = sizeof(FrameHeader) + 4;
  RawSocket one = listener_.Accept();
  EXPECT_EQ(one.Receive(sizeof(Hello) + request_size).size(), sizeof(Hello) + request_size);
  one.Send(WireBytes(Hello()) + ReplyBytes(2, 0) + "ok");
  one.Receive(request_size + 1'000);
  one.Close();
  RawSocket two = listener_.Accept();
  EXPECT_EQ(two.Receive(sizeof(Hello) + request_size + 1'000).size(),
            sizeof(Hello) + request_size + 1'000);
  two.Send(WireBytes(Hello()) + ReplyBytes(2, 0) + "ok");
  thread->Join();
  EXPECT_TRUE(calls[1].status.ok());
  EXPECT_EQ(second.observer.restarts, 1);
  EXPECT_EQ(second.observer.sent_bytes, 1'000u);
}

TEST_F(TcpClientTest, DoesNotRestartOnAConnectionThatWasFresh) {
  TestCallSpec spec("", "echo");
  const Call call = CallAgainst(spec, [](RawListener& listener) {
    listener.Accept().Receive(sizeof(Hello) + sizeof(FrameHeader) + 4);
  });
  EXPECT_EQ(call.failure, CallFailure::kBroken);
  EXPECT_EQ(spec.observer.restarts, 0);
}

TEST_F(TcpClientTest, NamesAnotherProtocolVersion) {
  TestCallSpec spec("", "echo");
  const Call call = CallAgainst(spec, [](RawListener& listener) {
    RawSocket socket = listener.Accept();
    Hello hello;
    hello.major = 2;
    hello.verdict = HelloVerdict::kVersion;
    socket.Send(WireBytes(hello));
    socket.IsClosedByPeer();
  });
  EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
  EXPECT_EQ(call.status.error().context,
            "peer `" + spec.endpoint + "` speaks protocol 2, we speak 1");
}

TEST_F(TcpClientTest, NamesADifferentSecret) {
  for (const char* server_secret : {"", "theirs"}) {
    for (const char* client_secret : {"", "ours"}) {
      TestService service(runtime_);
      TcpTransport server(runtime_, {.secret = server_secret});
      const std::string endpoint = server.Listen("127.0.0.1", 0, &service).value();
      TcpTransport client(runtime_, {.secret = client_secret});
      // A request larger than the socket's buffers: it cannot be sent before the refusal comes.
      TestCallSpec spec(endpoint, "echo", 20'000'000);
      const Call call = CallOne(client, spec);
      if (std::string_view(server_secret) == client_secret) {
        EXPECT_TRUE(call.status.ok());
        continue;
      }
      ASSERT_EQ(call.status.code(), ErrorCode::kTransport);
      EXPECT_THAT(call.status.error().context, testing::HasSubstr("cluster secret differs"));
      EXPECT_EQ(call.failure, CallFailure::kStranger);
      EXPECT_THAT(call.status.error().context, testing::HasSubstr(endpoint));
      EXPECT_EQ(service.accepted(), 0);
    }
  }
}

TEST_F(TcpClientTest, RefusesMalformedReplies) {
  FrameHeader bad_magic = RequestHeader(2, 0);
  bad_magic.magic = 1;
  const std::string replies[] = {
      WireBytes(bad_magic), WireBytes(RequestHeader(2, 0)),  // Not a reply.
      ReplyBytes(2, 0, 7),                                   // Of another request.
      ReplyBytes(~0u, 0),   ReplyBytes(2, ~0ull),           std::string(100, 'x'),
  };
  for (const std::string& reply : replies) {
    TestCallSpec spec("", "echo");
    const Call call = CallAgainst(spec, [&](RawListener& listener) {
      RawSocket socket = listener.Accept();
      socket.Send(WireBytes(Hello()) + reply + "ok");
      EXPECT_TRUE(socket.IsClosedByPeer());
    });
    EXPECT_EQ(call.status.code(), ErrorCode::kTransport);
    EXPECT_EQ(call.failure, CallFailure::kBroken);
    EXPECT_EQ(spec.observer.replies, 0);
  }
}

TEST_F(TcpClientTest, ATrickledReplyEndsAtTheDeadline) {
  TestCallSpec spec("", "echo");
  const uint64_t start_ms = runtime_.NowMs();
  spec.deadline_ms = start_ms + 400;
  const Call call = CallAgainst(spec, [this](RawListener& listener) {
    RawSocket socket = listener.Accept();
    socket.Send(WireBytes(Hello()) + ReplyBytes(2, 1'000) + "ok");
    for (int i = 0; i < 100 && socket.Send("x"); ++i) runtime_.SleepMs(20);
  });
  EXPECT_EQ(call.failure, CallFailure::kStalled);
  EXPECT_LT(runtime_.NowMs() - start_ms, 2'500u);
}

TEST_F(TcpClientTest, ATrickledMessageIsTaken) {
  TestCallSpec spec("", "echo");
  const Call call = CallAgainst(spec, [this](RawListener& listener) {
    RawSocket socket = listener.Accept();
    for (char c : WireBytes(Hello()) + ReplyBytes(5, 3) + "helloabc") {
      socket.Send({&c, 1});
      runtime_.SleepMs(1);
    }
  });
  ASSERT_TRUE(call.status.ok()) << call.status.error().ToString();
  EXPECT_EQ(spec.observer.message, "hello");
}

TEST_F(TcpClientTest, HalfOfManySilentPeersCostOneStallLimit) {
  TestService service(runtime_);
  std::vector<std::unique_ptr<TcpTransport>> servers;
  std::vector<std::unique_ptr<RawListener>> silent;
  std::vector<TestCallSpec> specs;
  for (int i = 0; i < 16; ++i) {
    silent.push_back(std::make_unique<RawListener>());
    specs.emplace_back(silent.back()->endpoint(), "echo", 10'000);
    servers.push_back(std::make_unique<TcpTransport>(runtime_, TcpOptions{}));
    specs.emplace_back(servers.back()->Listen("127.0.0.1", 0, &service).value(), "echo", 10'000);
  }
  std::vector<Call> calls;
  for (TestCallSpec& spec : specs) {
    spec.pieces = {ConstBytes(spec.bytes)};
    calls.push_back(spec.Make());
  }
  TcpTransport client(runtime_, {.stall_ms = kStallMs});
  const uint64_t start_ms = runtime_.NowMs();
  client.CallMany(calls);
  EXPECT_LT(runtime_.NowMs() - start_ms, 2 * kStallMs);
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].failure, i % 2 == 0 ? CallFailure::kStalled : CallFailure::kNone);
  }
}

TEST_F(TcpClientTest, ReachesNamesAndV6) {
  TestService service(runtime_);
  TcpTransport server(runtime_, {}), client(runtime_, {});
  const std::string endpoint = server.Listen("::", 0, &service).value();
  const std::string port = endpoint.substr(endpoint.rfind(':'));
  for (const char* host : {"localhost", "127.0.0.1", "[::1]"}) {
    TestCallSpec spec(host + port, "echo", 10);
    const Call call = CallOne(client, spec);
    EXPECT_TRUE(call.status.ok()) << call.status.error().ToString();
  }
  TestCallSpec nowhere("no.such.host.invalid:1", "echo");
  EXPECT_EQ(CallOne(client, nowhere).status.code(), ErrorCode::kTransport);
  TestCallSpec malformed("nonsense", "echo");
  EXPECT_EQ(CallOne(client, malformed).status.code(), ErrorCode::kInvalidArgument);
}

// Counts by the labels' values.
class CountingMetrics final : public Metrics {
 public:
  class Sum final : public Counter {
   public:
    void Add(uint64_t n) override { value_ += n; }
    uint64_t Value() const override { return value_; }

   private:
    std::atomic<uint64_t> value_ = 0;
  };
  Counter& GetCounter(const std::string& name, const Labels& labels) override {
    std::string key = name;
    for (const auto& [label, value] : labels) key += " " + value;
    return counters[key];
  }
  Gauge& GetGauge(const std::string&, const Labels&) override { std::abort(); }
  Histogram& GetHistogram(const std::string&, const Labels&) override { std::abort(); }
  std::string Text() override { return ""; }

  std::map<std::string, Sum> counters;
};

TEST_F(TcpClientTest, CountsPayloadBytes) {
  TestService service(runtime_);
  CountingMetrics metrics;
  TcpTransport server(runtime_, {}), client(runtime_, {}, &metrics);
  const std::string endpoint = server.Listen("127.0.0.1", 0, &service).value();
  TestCallSpec echo(endpoint, "echo", 100'000), get(endpoint, "g 1234567"), bad(endpoint, "x", 50);
  EXPECT_TRUE(CallOne(client, echo).status.ok());
  EXPECT_TRUE(CallOne(client, get).status.ok());
  EXPECT_FALSE(CallOne(client, bad).status.ok());
  EXPECT_EQ(metrics.counters["transport_bytes_total write tcp ok"].Value(), 100'000u);
  EXPECT_EQ(metrics.counters["transport_bytes_total read tcp ok"].Value(), 1'334'567u);
  EXPECT_EQ(metrics.counters["transport_bytes_total read tcp error"].Value(), 0u);
}

TEST_F(TcpClientTest, HoldsOneConnectionPerCallAtATime) {
  TestService service(runtime_);
  TcpTransport server(runtime_, {}), client(runtime_, {});
  const std::string endpoint = server.Listen("127.0.0.1", 0, &service).value();
  const size_t before = OpenDescriptors();
  for (int round = 0; round < 20; ++round) {
    std::vector<TestCallSpec> specs;
    for (int i = 0; i < 5; ++i) specs.emplace_back(endpoint, "echo", 1'000);
    std::vector<Call> calls;
    for (TestCallSpec& spec : specs) {
      spec.pieces = {ConstBytes(spec.bytes)};
      calls.push_back(spec.Make());
    }
    client.CallMany(calls);
    for (const Call& call : calls) EXPECT_TRUE(call.status.ok());
  }
  EXPECT_EQ(OpenDescriptors(), before + 10);
  client.Forget(endpoint);
  for (int i = 0; i < 500 && OpenDescriptors() != before; ++i) runtime_.SleepMs(5);
  EXPECT_EQ(OpenDescriptors(), before);
}

}  // namespace
}  // namespace mooncake::transfer

// Unary calls of gRPC, against a server that follows the rules and ones that do not.
#include "metadata/net/grpc_connection.h"

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <mutex>
#include <random>

#include "runtime/real_runtime.h"
#include "support/http2_frames.h"
#include "support/loopback_server.h"
#include "support/scripted_grpc.h"
#include "support/scripted_http.h"

namespace mooncake::metadata {
namespace {

using ::mooncake::testing::LoopbackServer;
using ::mooncake::testing::ScriptedGrpc;
using ::mooncake::testing::ScriptedHttp;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Reply = ScriptedGrpc::Reply;
namespace h2 = ::mooncake::testing::http2;

constexpr size_t kReplyMax = 4 << 20;

class GrpcConnectionTest : public ::testing::Test {
 protected:
  std::unique_ptr<GrpcConnection> Connected(uint16_t port, size_t reply_bytes_max = kReplyMax) {
    auto connection = std::make_unique<GrpcConnection>(
        GrpcConnection::Options{"server name", "127.0.0.1", port, std::nullopt, reply_bytes_max},
        end_by_ms_, runtime_);
    EXPECT_TRUE(connection->Connect(runtime_.NowMs() + 5'000).ok());
    return connection;
  }
  Result<GrpcReply> Call(GrpcConnection& connection, const std::string& message,
                         uint64_t limit_ms = 20'000) {
    return connection.Call({.method = "/p.S/M", .message = message, .token = ""},
                           runtime_.NowMs() + limit_ms);
  }
  // Of a server that answers every call so.
  Result<GrpcReply> Answered(const Reply& reply) {
    ScriptedGrpc server([&](const ScriptedGrpc::Call&) { return reply; });
    return Call(*Connected(server.port()), "");
  }
  // What a call says to a server that says `bytes` whatever it hears, and then waits or hangs up.
  Error Refused(const std::string& bytes, bool hang_up = false, size_t reply_bytes_max = 60'000) {
    LoopbackServer server([&](int client, const std::atomic<bool>& stop) {
      (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (hang_up) shutdown(client, SHUT_WR);
      Drain(client, stop);
    });
    auto connection = Connected(server.port(), reply_bytes_max);
    const Result<GrpcReply> reply = Call(*connection, "question", limit_ms_);
    EXPECT_FALSE(reply.ok());
    broken_ = connection->broken();
    foreign_ = connection->foreign();
    return reply.ok() ? Error{} : reply.error();
  }
  static void Drain(int client, const std::atomic<bool>& stop) {
    std::array<char, 4096> heard;
    while (!stop) {
      pollfd waited{.fd = client, .events = POLLIN, .revents = 0};
      if (poll(&waited, 1, LoopbackServer::kLookMs) <= 0) continue;
      if (recv(client, heard.data(), heard.size(), 0) <= 0) return;
    }
  }

  runtime::RealRuntime runtime_;
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};
  uint64_t limit_ms_ = 10'000;
  bool broken_ = false;
  bool foreign_ = false;
};

TEST_F(GrpcConnectionTest, CallsAreMadeOneAfterTheOther) {
  ScriptedGrpc server([](const ScriptedGrpc::Call& call) {
    return Reply{.message = call.method + "|" + call.token + "|" + call.message};
  });
  auto connection = Connected(server.port());
  for (const char* token : {"", "a token", ""}) {
    const Result<GrpcReply> reply = connection->Call(
        {.method = "/p.S/M", .message = "text", .token = token}, runtime_.NowMs() + 5'000);
    ASSERT_TRUE(reply.ok()) << reply.error().ToString();
    EXPECT_EQ(reply->code, 0);
    EXPECT_EQ(reply->message, std::string("/p.S/M|") + token + "|text");
    EXPECT_TRUE(connection->Idle());
  }
}

TEST_F(GrpcConnectionTest, MessagesMayBeEmptyAndLargerThanTheWindows) {
  ScriptedGrpc server(
      [](const ScriptedGrpc::Call& call) { return Reply{.message = call.message}; });
  auto connection = Connected(server.port());
  for (const size_t size : {size_t{0}, size_t{1}, size_t{100'000}, kReplyMax}) {
    std::string message(size, 'x');
    for (size_t i = 0; i < size; i += 1'000) message[i] = static_cast<char>(i);
    const Result<GrpcReply> reply = Call(*connection, message);
    ASSERT_TRUE(reply.ok()) << reply.error().ToString();
    EXPECT_TRUE(reply->message == message) << size;
  }
  const Result<GrpcReply> large = Call(*connection, std::string(kReplyMax + 1, 'x'));
  ASSERT_EQ(large.code(), ErrorCode::kMetadata);
  EXPECT_THAT(large.error().context,
              AllOf(HasSubstr("server name"), HasSubstr("larger than the limit")));
  EXPECT_FALSE(connection->Idle());
}

TEST_F(GrpcConnectionTest, ARefusalIsAReplyOfPrintableText) {
  const GrpcReply reply =
      Answered({.code = 5, .refusal = "no%20such%0Athing: \xc3\xa9 100%"}).value_or({});
  EXPECT_EQ(reply.code, 5);
  // What is encoded wrongly stays as it came.
  EXPECT_EQ(reply.refusal, "no%20such%0Athing: ?? 100%");
  EXPECT_EQ(Answered({.code = 5, .refusal = "no%20such%0Athing"}).value_or({}).refusal,
            "no such?thing");
  EXPECT_LE(Answered({.code = 5, .refusal = std::string(3'000, 'x')}).value_or({}).refusal.size(),
            200u);
  EXPECT_EQ(Answered({.code = 12'345, .refusal = "x"}).value_or({}).code, 2);
}

TEST_F(GrpcConnectionTest, AnHttpStatusHasItsCode) {
  const std::pair<const char*, int> codes[] = {{"401", 16}, {"404", 12}, {"500", 2}, {"503", 14}};
  for (const auto& [status, code] : codes) {
    const GrpcReply reply =
        Answered({.http_status = status, .content_type = "text/html"}).value_or({});
    EXPECT_EQ(reply.code, code);
    EXPECT_EQ(reply.refusal, std::string("HTTP status ") + status);
  }
  EXPECT_EQ(Answered({.content_type = "text/html"}).code(), ErrorCode::kMetadata);
}

TEST_F(GrpcConnectionTest, AServerThatGoesAwayIsNotAskedAgain) {
  std::atomic<int> calls = 0;
  ScriptedGrpc server([&](const ScriptedGrpc::Call&) {
    ++calls;
    return Reply{.message = "last", .goes_away = true};
  });
  auto connection = Connected(server.port());
  const Result<GrpcReply> reply = Call(*connection, "");
  ASSERT_TRUE(reply.ok()) << reply.error().ToString();
  EXPECT_EQ(reply->message, "last");
  EXPECT_FALSE(connection->Idle());
  EXPECT_FALSE(Call(*connection, "").ok());
  EXPECT_EQ(calls, 1);
}

// A server may ask an idle client whether it is there, and change its settings.
TEST_F(GrpcConnectionTest, AnIdleConnectionAnswersPings) {
  std::mutex mu;
  std::string heard;
  std::atomic<bool> asks = false;
  LoopbackServer server([&](int client, const std::atomic<bool>& stop) {
    const std::string greeting = h2::Frame(h2::kSettings, 0, 0, "");
    (void)!send(client, greeting.data(), greeting.size(), MSG_NOSIGNAL);
    std::array<char, 4096> bytes;
    while (!stop) {
      if (asks.exchange(false)) {
        const std::string ping = h2::Frame(h2::kPing, 0, 0, "12345678");
        (void)!send(client, ping.data(), ping.size(), MSG_NOSIGNAL);
      }
      pollfd waited{.fd = client, .events = POLLIN, .revents = 0};
      if (poll(&waited, 1, LoopbackServer::kLookMs) <= 0) continue;
      const ssize_t count = recv(client, bytes.data(), bytes.size(), 0);
      if (count <= 0) return;
      const std::lock_guard lock(mu);
      heard.append(bytes.data(), static_cast<size_t>(count));
      if (heard.find("question") != std::string::npos) {
        const std::string reply = h2::Reply(1, "answer");
        (void)!send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
        heard.clear();
      }
    }
  });
  auto connection = Connected(server.port());
  ASSERT_TRUE(Call(*connection, "question").ok());
  asks = true;
  const std::string pong = h2::Frame(h2::kPing, 1, 0, "12345678");
  const uint64_t deadline_ms = runtime_.NowMs() + 10'000;
  bool answered = false;
  while (!answered && runtime_.NowMs() < deadline_ms) {
    ASSERT_TRUE(connection->Idle());
    runtime_.SleepMs(1);
    const std::lock_guard lock(mu);
    answered = heard.find(pong) != std::string::npos;
  }
  EXPECT_TRUE(answered);
}

TEST_F(GrpcConnectionTest, AServerThatIsGoneIsNotIdle) {
  std::optional<ScriptedGrpc> server;
  server.emplace([](const ScriptedGrpc::Call&) { return Reply{}; });
  auto connection = Connected(server->port());
  ASSERT_TRUE(Call(*connection, "").ok());
  EXPECT_TRUE(connection->Idle());
  server.reset();
  EXPECT_FALSE(connection->Idle());
}

TEST_F(GrpcConnectionTest, WhatIsNotHttp2IsNamed) {
  for (const std::string& bytes :
       {std::string("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
        std::string("-ERR unknown command 'PRI'\r\n"), std::string(100, '\xff'),
        std::string(100, '\0'), h2::Frame(h2::kPing, 0, 0, "12345678"),
        h2::Frame(h2::kSettings, 0, 0, "12345"), h2::Frame(h2::kSettings, 1, 0, "")}) {
    EXPECT_THAT(Refused(bytes).context, AllOf(HasSubstr("server name"), HasSubstr("gRPC")));
    EXPECT_TRUE(foreign_);
    EXPECT_FALSE(broken_);
  }
  EXPECT_THAT(Refused("", true).context, HasSubstr("server name"));
  EXPECT_TRUE(broken_ && foreign_);
  ScriptedHttp http([](const std::string&, ScriptedHttp::Peer& peer) {
    peer.Send(ScriptedHttp::Answer(404, "no"));
  });
  EXPECT_FALSE(Call(*Connected(http.port()), "").ok());
}

TEST_F(GrpcConnectionTest, BrokenRulesAndBoundsAreErrorsAtOnce) {
  const std::string greeting = h2::Frame(h2::kSettings, 0, 0, "");
  const std::string start = greeting + h2::Frame(h2::kHeaders, h2::kEndHeaders, 1, h2::kReplyHead);
  const std::string end = h2::Frame(h2::kHeaders, h2::kEndHeaders | h2::kEnd, 1, h2::kReplyEnd);
  std::string pings, large, empty, headers, updates;
  for (int i = 0; i < 200'000; ++i) pings += h2::Frame(h2::kPing, 0, 0, "12345678");
  for (int i = 0; i < 200'000; ++i) empty += h2::Frame(h2::kData, 0, 1, "");
  for (int i = 0; i < 200'000; ++i) updates += h2::Frame(h2::kWindow, 0, 0, h2::Number(1, 4));
  for (int i = 0; i < 10; ++i) large += h2::Frame(h2::kData, 0, 1, std::string(16'000, '\0'));
  for (int i = 0; i < 140; ++i) headers += h2::Header("name", std::string(100, 'x'));
  std::string endless = h2::Frame(h2::kHeaders, 0, 1, h2::kReplyHead);
  for (int i = 0; i < 200; ++i) endless += h2::Frame(9, 0, 1, h2::Header("a", "b"));
  const std::string answers[] = {
      greeting + pings,
      greeting + updates,
      greeting + endless,
      start + empty,
      start + large,
      greeting + h2::Frame(h2::kHeaders, h2::kEndHeaders, 1, h2::kReplyHead + headers),
      greeting + h2::Frame(h2::kHeaders, h2::kEndHeaders, 1, "\xff\xff\xff\xff not packed"),
      greeting + h2::Frame(h2::kHeaders, h2::kEndHeaders, 1, h2::Header("a", "no status")),
      greeting + h2::Frame(h2::kHeaders, h2::kEndHeaders | h2::kEnd, 1, h2::kReplyHead),
      greeting + h2::Frame(h2::kData, 0, 1, "before the headers"),
      greeting + h2::Frame(h2::kData, h2::kEnd, 3, h2::Message("another stream")),
      greeting + h2::Frame(h2::kData, 0, 0, "no stream"),
      greeting + std::string("\xff\xff\xff\0\0\0\0\0\1", 9),
      greeting + h2::Frame(h2::kWindow, 0, 0, h2::Number(0, 4)),
      start + end,
      start + h2::Frame(h2::kData, 0, 1, "abc") + end,
      start + h2::Frame(h2::kData, h2::kEnd, 1, h2::Message("no trailer")),
      start + h2::Frame(h2::kData, 0, 1, h2::Message("short").substr(0, 7)) + end,
      start + h2::Frame(h2::kData, 0, 1, h2::Message("one") + h2::Message("two")) + end,
      start + h2::Frame(h2::kData, 0, 1, '\1' + h2::Message("compressed").substr(1)) + end,
      start + h2::Frame(h2::kData, 0, 1, '\0' + h2::Number(0xffffffff, 4) + "x") + end,
      start + h2::Frame(h2::kData, h2::kEnd | h2::kPadded, 1, "\x7f"),
  };
  int at = 0;
  for (const std::string& answer : answers) {
    const Error error = Refused(answer);
    EXPECT_EQ(error.code, ErrorCode::kMetadata) << at;
    EXPECT_THAT(error.context, HasSubstr("server name: no answer of gRPC")) << at;
    EXPECT_FALSE(broken_ || foreign_) << at;
    ++at;
  }
}

TEST_F(GrpcConnectionTest, AnotherConnectionMayDoWhereTheServerEndsTheCall) {
  const std::string greeting = h2::Frame(h2::kSettings, 0, 0, "");
  const std::string away = h2::Number(0, 4) + h2::Number(0, 4);
  for (const std::string& bytes : {greeting + h2::Frame(h2::kReset, 0, 1, h2::Number(7, 4)),
                                   greeting + h2::Frame(h2::kReset, 0, 1, h2::Number(0, 4)),
                                   greeting + h2::Frame(h2::kGoAway, 0, 0, away)}) {
    EXPECT_THAT(Refused(bytes).context, HasSubstr("server name: the server ended the call"));
    EXPECT_TRUE(broken_);
  }
  EXPECT_THAT(Refused(greeting, true).context, HasSubstr("closed the connection"));
  EXPECT_TRUE(broken_);
}

TEST_F(GrpcConnectionTest, SilenceEndsWithTheDeadline) {
  const std::string greeting = h2::Frame(h2::kSettings, 0, 0, "");
  // The second one lets nothing be sent.
  const std::string no_window = h2::Frame(h2::kSettings, 0, 0, h2::Setting(4, 0));
  const std::string no_calls = h2::Frame(h2::kSettings, 0, 0, h2::Setting(3, 0));
  limit_ms_ = 200;
  for (const std::string& bytes : {greeting, no_window, no_calls}) {
    EXPECT_THAT(Refused(bytes).context, HasSubstr("no answer within"));
    EXPECT_FALSE(broken_ || foreign_);
  }
}

// Whatever comes, the call ends with an error, or a reply within the bound.
TEST_F(GrpcConnectionTest, RandomBytesDoNoHarm) {
  std::mt19937 random(20'261'130);
  const auto below = [&](size_t limit) { return random() % limit; };
  const auto noise = [&](size_t size) {
    std::string bytes(size, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    return bytes;
  };
  const std::string greeting = h2::Frame(h2::kSettings, 0, 0, "");
  const std::string good = h2::Reply(1, std::string(200, 'x'));
  int replies = 0;
  for (int round = 0; round < 400; ++round) {
    std::string bytes = below(8) == 0 ? noise(below(300)) : greeting;
    if (below(2) == 0) {  // A reply with a few wrong bytes.
      std::string reply = good;
      for (size_t i = below(4); i > 0; --i)
        reply[below(reply.size())] = static_cast<char>(random());
      bytes += reply.substr(0, below(4) == 0 ? below(reply.size()) : reply.size());
    }
    for (size_t frames = below(6); frames > 0; --frames) {
      bytes += h2::Frame(static_cast<int>(below(12)), static_cast<int>(below(256)),
                         static_cast<uint32_t>(below(4)), noise(below(40)));
    }
    LoopbackServer server([&](int client, const std::atomic<bool>& stop) {
      (void)!send(client, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      shutdown(client, SHUT_WR);
      Drain(client, stop);
    });
    auto connection = Connected(server.port(), 1'000);
    const Result<GrpcReply> reply = Call(*connection, "question", 10'000);
    if (!reply) {
      EXPECT_EQ(reply.code(), ErrorCode::kMetadata);
      EXPECT_THAT(reply.error().context, ::testing::Not(HasSubstr("no answer within")));
      continue;
    }
    ++replies;
    EXPECT_LE(reply->message.size() + reply->refusal.size(), 1'200u);
    connection->Idle();
  }
  EXPECT_GT(replies, 20);
}

}  // namespace
}  // namespace mooncake::metadata

// The calls of a hello, against servers that are no daemon.
#include "client/dummy/unary_call.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "client/dummy/unix_socket.h"
#include "runtime/real_runtime.h"
#include "support/http2_frames.h"

namespace mooncake::client {
namespace {

namespace h2 = ::mooncake::testing::http2;

class UnaryCallTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* name = reinterpret_cast<sockaddr*>(&address);
    ASSERT_EQ(bind(listener_.get(), name, size), 0);
    ASSERT_EQ(listen(listener_.get(), 4), 0);
    ASSERT_EQ(getsockname(listener_.get(), name, &size), 0);
    call_.address = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    call_.method = "/package.Service/Method";
    call_.message = "question";
  }

  // The call, with a server that says `bytes` whatever it is asked, and then waits or hangs up.
  Result<std::string> CallAnswered(const std::string& bytes, bool hang_up = false) {
    std::thread server([&] {
      Descriptor peer(accept(listener_.get(), nullptr, nullptr));
      (void)!send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (hang_up) shutdown(peer.get(), SHUT_WR);
      char heard[4096];
      for (ssize_t got; (got = recv(peer.get(), heard, sizeof(heard), 0)) > 0;) {
        heard_.append(heard, static_cast<size_t>(got));
      }
    });
    call_.deadline_ms = runtime_.NowMs() + 1'000;
    Result<std::string> reply = call_.Run(end_by_ms_, runtime_);
    server.join();
    return reply;
  }

  runtime::RealRuntime runtime_;
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};
  Descriptor listener_;
  UnaryCall call_;
  std::string heard_;
};

TEST_F(UnaryCallTest, AReplyIsUnderstoodHoweverItIsCut) {
  const std::string message = h2::Message("answer");
  const auto reply = CallAnswered(
      h2::Frame(h2::kSettings, 0, 0, "") + h2::Frame(h2::kPing, 0, 0, "12345678") +
      h2::Frame(h2::kHeaders, h2::kEndHeaders, 1, h2::kReplyHead) +
      h2::Frame(h2::kWindow, 0, 0, h2::Number(70'000, 4)) +
      h2::Frame(h2::kData, 0, 1, message.substr(0, 2)) +
      h2::Frame(h2::kData, 0, 1, message.substr(2, 2)) +
      h2::Frame(h2::kData, h2::kPadded, 1, '\3' + message.substr(4) + std::string(3, '\0')) +
      h2::Frame(h2::kHeaders, h2::kEndHeaders | h2::kEnd, 1, h2::kReplyEnd));
  ASSERT_TRUE(reply.ok()) << reply.error().ToString();
  EXPECT_EQ(*reply, "answer");
  // What it was asked, and that its settings and its ping were answered.
  EXPECT_NE(heard_.find(h2::Frame(h2::kData, h2::kEnd, 1, h2::Message("question"))),
            std::string::npos);
  EXPECT_NE(heard_.find(h2::Frame(h2::kSettings, 1, 0, "")), std::string::npos);
  EXPECT_NE(heard_.find(h2::Frame(h2::kPing, 1, 0, "12345678")), std::string::npos);
}

TEST_F(UnaryCallTest, WhatIsNoReplyIsRefused) {
  const std::string start = h2::Frame(h2::kSettings, 0, 0, "");
  const auto alone = [](const std::string& status) {
    return h2::Frame(h2::kHeaders, h2::kEndHeaders | h2::kEnd, 1,
                     h2::kReplyHead + h2::Header("grpc-status", status));
  };
  const std::pair<std::string, const char*> answers[] = {
      {"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "is not a daemon"},
      {std::string(100, '\xff'), "is not a daemon"},
      {start + alone("12"), "/package.Service/Method was refused"},
      {start + alone("0"), "no message"},
      {start + h2::Frame(h2::kReset, 0, 1, h2::Number(2, 4)), "ended the call"},
      {start + h2::Frame(h2::kGoAway, 0, 0, std::string(8, '\0')), "ended the call"},
      {start + h2::Frame(h2::kData, h2::kEnd, 3, h2::Message("x")), "no answer of gRPC"},
      {start + h2::Reply(1, std::string(60'001, 'x')), "no answer of gRPC"},
  };
  for (const auto& [answer, why] : answers) {
    const auto reply = CallAnswered(answer);
    ASSERT_EQ(reply.code(), ErrorCode::kTransport) << why;
    EXPECT_NE(reply.error().context.find(call_.address), std::string::npos);
    EXPECT_NE(reply.error().context.find(why), std::string::npos) << reply.error().context;
  }
  EXPECT_EQ(CallAnswered("", true).code(), ErrorCode::kTransport);
}

TEST_F(UnaryCallTest, SilenceEndsWithTheDeadline) {
  const auto reply = CallAnswered(h2::Frame(h2::kSettings, 0, 0, ""));
  EXPECT_EQ(reply.code(), ErrorCode::kTransport);
  EXPECT_NE(reply.error().context.find("no answer within"), std::string::npos);
}

}  // namespace
}  // namespace mooncake::client

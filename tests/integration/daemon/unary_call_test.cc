// The one kind of gRPC call that a client makes by hand, against servers that are no daemon.
#include "client/dummy/unary_call.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "client/dummy/unix_socket.h"
#include "runtime/real_runtime.h"

namespace mooncake::client {
namespace {

std::string Number(uint64_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) {
    text.push_back(static_cast<char>(value >> shift));
  }
  return text;
}

std::string Frame(int type, int flags, uint32_t stream, const std::string& payload) {
  return Number(payload.size(), 3) + static_cast<char>(type) + static_cast<char>(flags) +
         Number(stream, 4) + payload;
}

std::string Message(const std::string& text) { return '\0' + Number(text.size(), 4) + text; }

constexpr int kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7;
constexpr int kEnd = 1, kPadded = 8;

class UnaryCallTest : public testing::Test {
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
  const std::string message = Message("answer");
  const auto reply = CallAnswered(
      Frame(kSettings, 0, 0, std::string(6, '\0')) + Frame(kPing, 0, 0, "12345678") +
      Frame(kHeaders, 4, 1, "whatever") + Frame(8, 0, 0, Number(70'000, 4)) +
      Frame(kData, 0, 1, message.substr(0, 2)) + Frame(kData, 0, 1, message.substr(2, 2)) +
      Frame(kData, kPadded, 1, '\3' + message.substr(4) + std::string(3, '\0')) +
      Frame(kHeaders, 4 | kEnd, 1, "trailer"));
  ASSERT_TRUE(reply.ok()) << reply.error().ToString();
  EXPECT_EQ(*reply, "answer");
  // What it was asked, and that its settings and its ping were answered.
  EXPECT_NE(heard_.find(Frame(kData, kEnd, 1, Message("question"))), std::string::npos);
  EXPECT_NE(heard_.find("/package.Service/Method"), std::string::npos);
  EXPECT_NE(heard_.find(Frame(kSettings, 1, 0, "")), std::string::npos);
  EXPECT_NE(heard_.find(Frame(kPing, 1, 0, "12345678")), std::string::npos);
}

TEST_F(UnaryCallTest, WhatIsNoReplyIsRefused) {
  std::string endless;
  for (int i = 0; i < 2'000; ++i) endless += Frame(kSettings, 1, 0, "");
  std::string large;
  for (int i = 0; i < 10; ++i) large += Frame(kData, 0, 1, std::string(16'000, 'x'));
  const std::string answers[] = {
      "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
      std::string(100, '\xff'),
      endless,
      large,
      Frame(kHeaders, 4 | kEnd, 1, "a status alone"),
      Frame(kReset, 0, 1, Number(2, 4)),
      Frame(kGoAway, 0, 0, std::string(8, '\0')),
      Frame(kData, kEnd, 3, Message("another stream")),
      Frame(kData, kEnd, 1, ""),
      Frame(kData, kEnd, 1, "abc"),
      Frame(kData, kEnd, 1, Message("short").substr(0, 7)),
      Frame(kData, kEnd, 1, '\1' + Message("compressed").substr(1)),
      Frame(kData, kEnd | kPadded, 1, "\x7f"),
      Frame(kData, kEnd | kPadded, 1, ""),
  };
  for (const std::string& answer : answers) {
    const auto reply = CallAnswered(answer);
    EXPECT_EQ(reply.code(), ErrorCode::kTransport) << answer.substr(0, 40);
    EXPECT_NE(reply.error().context.find(call_.address), std::string::npos);
  }
  EXPECT_EQ(CallAnswered("", true).code(), ErrorCode::kTransport);
}

TEST_F(UnaryCallTest, SilenceEndsWithTheDeadline) {
  const auto reply = CallAnswered(Frame(kSettings, 0, 0, ""));
  EXPECT_EQ(reply.code(), ErrorCode::kTransport);
  EXPECT_NE(reply.error().context.find("no answer"), std::string::npos);
}

}  // namespace
}  // namespace mooncake::client

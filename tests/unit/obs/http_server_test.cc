// The metrics server against clients that are slow, wrong, many or hostile.
#include "obs/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hostport.h"
#include "runtime/real_runtime.h"

namespace mooncake::obs {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Client {
 public:
  explicit Client(const HttpServer& server) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(*base::ParseHostPort("address", server.address())->port);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(fd_); }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void Send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t sent = send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // The server has had enough.
      text.remove_prefix(static_cast<size_t>(sent));
    }
  }

  // All that comes until the server closes.
  std::string Receive() {
    std::string all;
    char chunk[4096];
    for (ssize_t got; (got = recv(fd_, chunk, sizeof(chunk), 0)) > 0;) {
      all.append(chunk, static_cast<size_t>(got));
    }
    return all;
  }

 private:
  const int fd_;
};

class HttpServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<HttpServer> Serve(HttpLimits limits = {}) {
    auto server = HttpServer::Start(
        runtime_, "127.0.0.1:0",
        [this](const HttpRequest& request) {
          last_ = request;
          return HttpResponse{.body = "you asked for " + request.path + "\n"};
        },
        limits);
    EXPECT_TRUE(server.ok());
    return std::move(server).value();
  }

  static std::string Ask(const HttpServer& server, std::string_view text) {
    Client client(server);
    client.Send(text);
    return client.Receive();
  }

  runtime::RealRuntime runtime_;
  HttpRequest last_;
};

TEST_F(HttpServerTest, AnswersAndCloses) {
  const auto server = Serve();
  const std::string reply =
      Ask(*server, "GET /a%20b?x=1&y=%2Ftmp+z&x=2 HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(reply, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(reply, HasSubstr("Connection: close\r\n"));
  EXPECT_THAT(reply, EndsWith("\r\n\r\nyou asked for /a b\n"));
  EXPECT_EQ(last_.query.at("x"), "2");
  EXPECT_EQ(last_.query.at("y"), "/tmp z");
  EXPECT_EQ(last_.headers.at("host"), "h");
  EXPECT_TRUE(last_.from_loopback);
}

TEST_F(HttpServerTest, TakesARequestInPieces) {
  const auto server = Serve();
  Client client(*server);
  for (char c : std::string("GET /slow HTTP/1.0\r\n\r\n")) client.Send({&c, 1});
  EXPECT_THAT(client.Receive(), EndsWith("you asked for /slow\n"));
}

TEST_F(HttpServerTest, RefusesWhatIsNotAPlainGet) {
  const auto server = Serve();
  const std::pair<const char*, const char*> refused[] = {
      {"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405"},
      {"HEAD /metrics HTTP/1.1\r\n\r\n", "405"},
      {"GET /metrics HTTP/2.0\r\n\r\n", "505"},
      {"GET /metrics\r\n\r\n", "400"},
      {"GET  /metrics HTTP/1.1\r\n\r\n", "400"},
      {"GET metrics HTTP/1.1\r\n\r\n", "400"},
      {"GET http://else/metrics HTTP/1.1\r\n\r\n", "400"},
      {"GET /%zz HTTP/1.1\r\n\r\n", "400"},
      {"GET /%0d%0aX:%20y HTTP/1.1\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nno colon\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n: nameless\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nBad Name: x\r\n\r\n", "400"},
      {"\x16\x03\x01\x02\r\n\r\n", "400"},
      {"\r\n\r\n", "400"},
  };
  for (const auto& [request, status] : refused) {
    EXPECT_THAT(Ask(*server, request), StartsWith(std::string("HTTP/1.1 ") + status)) << request;
  }
}

TEST_F(HttpServerTest, RefusesAHeadThatDoesNotEnd) {
  const auto server = Serve();
  const std::string large(100'000, 'a');
  EXPECT_THAT(Ask(*server, "GET / HTTP/1.1\r\nX: " + large), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(Ask(*server, "GET /" + large + " HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 431"));
}

TEST_F(HttpServerTest, EndsThoseWhoDoNotAsk) {
  const auto server = Serve({.ask_ms = 50});
  EXPECT_EQ(Ask(*server, ""), "");
  EXPECT_THAT(Ask(*server, "GET / HTT"), StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpServerTest, EndsThoseWhoDoNotReadTheAnswer) {
  auto server = HttpServer::Start(
      runtime_, "127.0.0.1:0",
      [](const HttpRequest&) { return HttpResponse{.body = std::string(64 << 20, 'x')}; },
      {.connections = 1, .reply_ms = 50});
  ASSERT_TRUE(server.ok());
  Client deaf(**server);
  deaf.Send("GET / HTTP/1.1\r\n\r\n");
  // There is room for one connection: the next one is served once the deaf one is gone.
  Client next(**server);
  next.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_THAT(next.Receive(), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, SilentClientsHoldUpNobody) {
  const auto server = Serve({.connections = 4, .ask_ms = 100});
  std::vector<std::unique_ptr<Client>> silent;
  silent.reserve(16);
  for (int i = 0; i < 16; ++i) silent.push_back(std::make_unique<Client>(*server));
  EXPECT_THAT(Ask(*server, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpServerTest, StopsAtOnceWhateverClientsDo) {
  auto server = Serve();
  Client silent(*server);
  Client half(*server);
  half.Send("GET / HT");
  const uint64_t before_ms = runtime_.NowMs();
  server.reset();
  EXPECT_LT(runtime_.NowMs() - before_ms, 1'000u);
  EXPECT_EQ(silent.Receive(), "");
}

TEST_F(HttpServerTest, SaysWhyItCannotListen) {
  const auto first = Serve();
  const auto handler = [](const HttpRequest&) { return HttpResponse{}; };
  const auto taken = HttpServer::Start(runtime_, first->address(), handler);
  EXPECT_EQ(taken.code(), ErrorCode::kTransport);
  EXPECT_THAT(taken.error().context, HasSubstr("in use"));
  for (const char* wrong : {"127.0.0.1", "nonsense:port", "127.0.0.1:70000"}) {
    EXPECT_EQ(HttpServer::Start(runtime_, wrong, handler).code(), ErrorCode::kInvalidArgument)
        << wrong;
  }
}

}  // namespace
}  // namespace mooncake::obs

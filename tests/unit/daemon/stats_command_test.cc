#include "daemon/stats_command.h"

#include <gtest/gtest.h>

namespace mooncake::daemon {
namespace {

TEST(StatsAnswer, OfStatus200HasABody) {
  EXPECT_EQ(BodyOf("h:1/stats", "HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}\r\n\r\n").value_or(""),
            "{}\r\n\r\n");
  EXPECT_EQ(BodyOf("h:1/stats", "HTTP/1.0 200\r\n\r\n").value_or("none"), "");
}

TEST(StatsAnswer, OfAnythingElseIsShown) {
  for (const std::string answer :
       {"", "HTTP/1.", "HTTP/1.1", "HTTP/1.1 404 Not Found\r\n\r\nx", "HTTP/1.1 200 OK\r\n",
        "HTTP/1.12 200 OK\r\n\r\n", "SSH-2.0 200\r\n\r\n"}) {
    const Result<std::string> body = BodyOf("h:1/stats", answer);
    ASSERT_EQ(body.code(), ErrorCode::kTransport) << answer;
    EXPECT_EQ(body.error().context, "h:1/stats: " + answer.substr(0, answer.find("\r\n")));
  }
}

}  // namespace
}  // namespace mooncake::daemon

// Connections to a metadata service whose name the system's resolver does not answer for.
#include "metadata/net/stream.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <netdb.h>

#include <atomic>
#include <string_view>

#include "runtime/real_runtime.h"
#include "support/scripted_http.h"

namespace {

std::atomic<bool> hangs = false;
std::atomic<int> asked = 0;

}  // namespace

// In the place of the system's: it does not answer for a while.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints,
                           addrinfo** found) {
  using Function = decltype(&getaddrinfo);
  static const auto system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!numeric) {
    ++asked;
    mooncake::runtime::RealRuntime runtime;
    while (hangs) runtime.SleepMs(5);
  }
  return system(host, service, hints, found);
}

namespace mooncake::metadata {
namespace {

using ::mooncake::testing::ScriptedHttp;
using ::testing::HasSubstr;

class StreamTest : public ::testing::Test {
 protected:
  ~StreamTest() override { hangs = false; }

  Status Connect(const std::string& host, uint64_t limit_ms) {
    Stream stream("name", end_by_ms_, runtime_);
    return stream.Connect(host, server_.port(), std::nullopt, runtime_.NowMs() + limit_ms);
  }

  runtime::RealRuntime runtime_;
  std::atomic<uint64_t> end_by_ms_{UINT64_MAX};
  ScriptedHttp server_{[](const std::string&, ScriptedHttp::Peer&) {}};
};

TEST_F(StreamTest, ANameIsLookedUp) {
  EXPECT_TRUE(Connect("localhost", 5'000).ok());
  EXPECT_EQ(Connect("no such name", 5'000).code(), ErrorCode::kMetadata);
}

TEST_F(StreamTest, AnAddressInNumbersAsksNobody) {
  hangs = true;
  asked = 0;
  EXPECT_TRUE(Connect("127.0.0.1", 5'000).ok());
  EXPECT_EQ(asked, 0);
}

TEST_F(StreamTest, AResolverThatHangsCostsTheDeadline) {
  hangs = true;
  const Status status = Connect("localhost", 150);
  ASSERT_EQ(status.code(), ErrorCode::kMetadata);
  EXPECT_THAT(status.error().context, HasSubstr("no answer of the resolver within"));
  end_by_ms_ = runtime_.NowMs() + 100;
  EXPECT_EQ(Connect("localhost", 600'000).code(), ErrorCode::kMetadata);
}

TEST_F(StreamTest, AnInterruptEndsTheWaitForTheResolver) {
  hangs = true;
  runtime_.SetInterruptCheck([] { return true; });
  EXPECT_EQ(Connect("localhost", 600'000).code(), ErrorCode::kTransport);
}

TEST_F(StreamTest, TheNumberOfThreadsThatHangIsBounded) {
  hangs = true;
  asked = 0;
  Status status = Ok();
  for (int i = 0; i < 40; ++i) status = Connect("localhost", 5);
  EXPECT_LE(asked, 20);
  EXPECT_THAT(status.error().context, HasSubstr("still looks for earlier names"));
  hangs = false;
  const uint64_t deadline_ms = runtime_.NowMs() + 20'000;
  while (!Connect("localhost", 5'000).ok() && runtime_.NowMs() < deadline_ms) runtime_.SleepMs(5);
  EXPECT_TRUE(Connect("localhost", 5'000).ok());
}

}  // namespace
}  // namespace mooncake::metadata

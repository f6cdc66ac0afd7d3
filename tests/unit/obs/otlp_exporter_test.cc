// The exporter against collectors that are none.
#include "obs/otlp_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/real_runtime.h"
#include "support/scripted_http.h"

namespace mooncake::obs {
namespace {

using ::mooncake::testing::ScriptedHttp;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kFlushMs = 5'000;

class OtlpExporterTest : public ::testing::Test {
 protected:
  std::unique_ptr<OtlpExporter> ExportTo(const ScriptedHttp& collector) {
    auto exporter = OtlpExporter::Start(
        runtime_, {.endpoint = "http://" + collector.Address() + "/v1/traces", .timeout_ms = 300});
    EXPECT_TRUE(exporter.ok());
    (*exporter)->Add({.name = "store.get", .request = 1});
    return *std::move(exporter);
  }

  runtime::RealRuntime runtime_;
};

TEST_F(OtlpExporterTest, AnAnswerWithoutEndIsCutOffAndItsStatusCounts) {
  std::atomic<size_t> pieces = 0;
  ScriptedHttp collector([&](const std::string&, ScriptedHttp::Peer& peer) {
    bool more = peer.Send("HTTP/1.1 200 OK\r\n\r\n");
    const std::string piece(size_t{64} << 10, 'x');
    while (more) {
      more = peer.Send(piece);
      ++pieces;
    }
  });
  auto exporter = ExportTo(collector);
  EXPECT_TRUE(exporter->Flush(kFlushMs));
  EXPECT_EQ(exporter->counts().exported, 1u);
  EXPECT_LT(pieces, 1'000u);
}

TEST_F(OtlpExporterTest, AnAnswerWithoutContentIsOne) {
  std::atomic<int> asked = 0;
  ScriptedHttp collector([&](const std::string&, ScriptedHttp::Peer& peer) {
    ++asked;
    peer.Send("HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
  });
  auto exporter = ExportTo(collector);
  EXPECT_TRUE(exporter->Flush(kFlushMs));
  EXPECT_EQ(exporter->counts().exported, 1u);
  EXPECT_EQ(asked, 1);
}

TEST_F(OtlpExporterTest, AnAnswerThatDripsIsCutOffAndItsStatusCounts) {
  ScriptedHttp collector([&](const std::string&, ScriptedHttp::Peer& peer) {
    bool more = peer.Send("HTTP/1.1 400 Bad\r\n\r\n");
    while (more) {
      more = peer.Send("x");
      runtime_.SleepMs(20);
    }
  });
  auto exporter = ExportTo(collector);
  EXPECT_TRUE(exporter->Flush(kFlushMs));
  EXPECT_EQ(exporter->counts().refused, 1u);
  EXPECT_THAT(exporter->last_error(), HasSubstr("it answered 400"));
}

TEST_F(OtlpExporterTest, APasswordInTheEndpointIsRefusedAndNotShown) {
  for (const char* endpoint :
       {"http://user:secret@127.0.0.1:1/v1/traces", "http://user:12/secret@127.0.0.1/v1/traces",
        "https://secret@127.0.0.1", "http://user:secret%4@127.0.0.1", "ftp://u:secret@127.0.0.1"}) {
    const auto exporter = OtlpExporter::Start(runtime_, {.endpoint = endpoint});
    ASSERT_EQ(exporter.code(), ErrorCode::kInvalidArgument) << endpoint;
    EXPECT_THAT(exporter.error().context, Not(HasSubstr("secret"))) << endpoint;
  }
}

TEST_F(OtlpExporterTest, AnAddressLongerThanAnyIsRefused) {
  const std::string many(size_t{1} << 20, '0');
  for (const std::string& endpoint :
       {"http://" + many, "http://[" + many + "::]:1/v1/traces", "http://h:" + many + "80/"}) {
    const auto exporter = OtlpExporter::Start(runtime_, {.endpoint = endpoint});
    ASSERT_EQ(exporter.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(exporter.error().context, HasSubstr("endpoint"));
    EXPECT_LT(exporter.error().context.size(), 500u);
  }
}

}  // namespace
}  // namespace mooncake::obs

// What an etcd server, or whatever answers in its place, may send: messages, and HTTP/2 around
// them.
#include <gtest/gtest.h>

#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "metadata/etcd/etcd_messages.h"
#include "metadata/net/grpc_session.h"
#include "mooncake/etcd.pb.h"
#include "support/http2_frames.h"

namespace mooncake::metadata {
namespace {

using fuzz::Change;
using fuzz::Format;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using fuzz::WrongError;

constexpr size_t kReplyBytesMax = 1000;
constexpr size_t kRanges = 2;

etcd::TxnResponse SampleAnswer() {
  etcd::TxnResponse answer;
  answer.mutable_header()->set_revision(7);
  answer.mutable_header()->set_cluster_id(99);
  answer.set_succeeded(true);
  for (size_t i = 0; i < kRanges; ++i) {
    auto& range = *answer.add_responses()->mutable_response_range();
    range.set_count(1);
    auto& key = *range.add_kvs();
    key.set_key("mc/{ks}/leases/n:1");
    key.set_value("nonce 0 7 4096 {}");
    key.set_mod_revision(7);
    key.set_lease(3);
  }
  return answer;
}

// These messages know nothing of their fields, so the fields are drawn here.
std::string SomeAnswer(Random& random) {
  const auto number = [&] { return static_cast<int64_t>(random.Extreme()); };
  etcd::TxnResponse answer;
  answer.mutable_header()->set_revision(random.OneIn(3) ? number() : 7);
  answer.set_succeeded(random.OneIn(2));
  for (uint64_t count = kRanges + (random.OneIn(4) ? random.Below(9) : 0); count > 0; --count) {
    auto& response = *answer.add_responses();
    if (random.OneIn(10)) continue;
    auto& range = *response.mutable_response_range();
    range.set_count(random.OneIn(4) ? number() : 1);
    for (uint64_t keys = random.Below(4); keys > 0; --keys) {
      auto& key = *range.add_kvs();
      key.set_key(random.Bytes(random.Below(20)));
      key.set_value(random.Bytes(random.Below(200)));
      key.set_mod_revision(random.OneIn(4) ? number() : 5);
      key.set_lease(number());
    }
  }
  return answer.SerializeAsString();
}

std::string SomeNumber(Random& random) {
  etcd::LeaseKeepAliveResponse alive;
  alive.set_id(static_cast<int64_t>(random.Extreme()));
  alive.set_ttl(static_cast<int64_t>(random.Extreme()));
  return alive.SerializeAsString();
}

std::string CheckAnswer(const std::string& input) {
  const Result<EtcdRead> read = ReadFrom(input, kRanges);
  if (read) {
    MC_FUZZ_CHECK(read->ranges.size() == kRanges);
    MC_FUZZ_CHECK(read->revision <= INT64_MAX);
    for (const EtcdRangeResult& range : read->ranges) {
      MC_FUZZ_CHECK(range.count <= INT64_MAX);
      for (const EtcdKey& key : range.keys) MC_FUZZ_CHECK(key.written <= INT64_MAX);
    }
  }
  const Result<bool> committed = CommitFrom(input);
  const Result<uint64_t> granted = GrantFrom(input);
  MC_FUZZ_CHECK(!granted || *granted != 0);
  const Result<bool> alive = KeepAliveFrom(input);
  const Result<std::string> token = LoginFrom(input);
  MC_FUZZ_CHECK(!token || !token->empty());
  std::string wrong;
  if (!read) wrong += WrongError(read.error(), ErrorCode::kMetadata, "etcd");
  if (!committed) wrong += WrongError(committed.error(), ErrorCode::kMetadata, "etcd");
  if (!granted) wrong += WrongError(granted.error(), ErrorCode::kMetadata, "etcd");
  if (!alive) wrong += WrongError(alive.error(), ErrorCode::kMetadata, "etcd");
  if (!token) wrong += WrongError(token.error(), ErrorCode::kMetadata, "etcd");
  return wrong;
}

TEST(EtcdFuzz, AnAnswerIsReadWithinItsBoundsOrIsMalformed) {
  etcd::AuthenticateResponse login;
  login.set_token("token.1");
  const std::vector<std::string> samples = {SampleAnswer().SerializeAsString(),
                                            login.SerializeAsString()};
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check = CheckAnswer,
             .make =
                 [samples](Random& random) {
                   if (random.OneIn(3)) return InputFrom(samples, Format::kBinary, random);
                   if (random.OneIn(4)) return SomeNumber(random);
                   return SomeAnswer(random);
                 },
             .allocated_bytes_max = 6 * fuzz::kReservedByParse,
             .allocated_per_byte_max = fuzz::kMessagePerByteMax});
}

// Feeds a session that waits for the reply to its first call, in pieces.
std::string FeedSession(const std::string& input) {
  GrpcSession session("host:1", false, kReplyBytesMax);
  MC_FUZZ_CHECK(session.Begin({.method = "/a.B/C", .message = "ask", .token = "t"}).ok());
  MC_FUZZ_CHECK(session.TakeOutput().ok());
  Random pieces(input.size());
  for (size_t at = 0; at < input.size() && !session.ended();) {
    const size_t size = std::min(input.size() - at, 1 + pieces.Below(100));
    if (const Status added = session.AddInput(std::string_view(input).substr(at, size)); !added) {
      MC_FUZZ_CHECK(session.failed() || session.cut());
      return WrongError(added.error(), ErrorCode::kMetadata, "");
    }
    at += size;
    if (const auto output = session.TakeOutput(); !output) {
      return WrongError(output.error(), ErrorCode::kMetadata, "");
    }
  }
  if (!session.ended()) return kRight;
  const Result<GrpcReply> reply = session.TakeReply();
  if (!reply) return WrongError(reply.error(), ErrorCode::kMetadata, "");
  MC_FUZZ_CHECK(reply->message.size() <= kReplyBytesMax && reply->refusal.size() <= 300);
  MC_FUZZ_CHECK(reply->code >= 0 && reply->code <= 16);
  MC_FUZZ_CHECK(reply->code == 0 || reply->message.empty());
  for (const char c : reply->refusal) MC_FUZZ_CHECK(c >= ' ' && c <= '~');

  return kRight;
}

std::vector<std::string> SampleFrames() {
  using namespace testing::http2;  // NOLINT(google-build-using-namespace)
  const std::string greeting = Frame(kSettings, 0, 0, Setting(3, 100));
  const std::string refused =
      Frame(kHeaders, kEndHeaders | kEnd, 1,
            kReplyHead + Header("grpc-status", "7") + Header("grpc-message", "no%20way %41%"));
  return {greeting + Reply(1, "answer"),
          greeting + refused,
          greeting + Frame(kPing, 0, 0, "12345678") + Frame(kWindow, 0, 0, Number(1000, 4)) +
              Reply(1, std::string(500, 'x')),
          greeting + Frame(kGoAway, 0, 0, Number(1, 4) + Number(0, 4)) + Reply(1, ""),
          greeting + Frame(kReset, 0, 1, Number(8, 4)),
          greeting + Frame(kHeaders, kEndHeaders, 1, Header(":status", "503")) +
              Frame(kData, kEnd, 1, "<html>")};
}

// Whole frames are dropped, doubled and swapped; some have a wrong head.
std::string ShuffledFrames(Random& random) {
  using namespace testing::http2;  // NOLINT(google-build-using-namespace)
  const std::vector<std::string> frames = {
      Frame(kSettings, 0, 0,
            Setting(static_cast<int>(random.Below(10)), static_cast<uint32_t>(random.Extreme()))),
      Frame(kHeaders, kEndHeaders, 1, kReplyHead),
      Frame(kHeaders, kEndHeaders | kEnd, 1, kReplyEnd),
      Frame(kHeaders, kEndHeaders | kEnd, 1,
            Header("grpc-status", std::to_string(random.Extreme()))),
      Frame(kData, 0, 1, Message("answer")),
      Frame(kData, kPadded, 1, static_cast<char>(random.Next()) + random.Bytes(random.Below(60))),
      Frame(kData, 0, 1, '\0' + Number(random.Extreme(), 4) + "answer"),
      Frame(kData, static_cast<int>(random.Below(256)), 1, std::string(random.Below(1500), 'd')),
      Frame(kPing, static_cast<int>(random.Below(2)), 0, random.Bytes(8)),
      Frame(kWindow, 0, static_cast<uint32_t>(random.Below(3)), Number(random.Extreme(), 4)),
      Frame(kReset, 0, 1, Number(random.Below(14), 4)),
      Frame(kGoAway, 0, 0, Number(random.Below(4), 4) + Number(random.Below(14), 4)),
      Frame(static_cast<int>(random.Below(256)), static_cast<int>(random.Below(256)),
            static_cast<uint32_t>(random.Extreme()), random.Bytes(random.Below(50)))};
  std::string wire = random.OneIn(10) ? "" : Frame(kSettings, 0, 0, "");
  for (uint64_t count = 1 + random.Below(8); count > 0; --count) wire += random.Of(frames);
  return wire;
}

TEST(EtcdFuzz, ASessionEndsWithAReplyWithinItsBoundsOrAnError) {
  const std::vector<std::string> samples = SampleFrames();
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check = [](const std::string& input) { return FeedSession(input); },
             .make =
                 [samples](Random& random) {
                   if (random.OneIn(2)) return InputFrom(samples, Format::kBinary, random);
                   std::string wire = ShuffledFrames(random);
                   if (random.OneIn(4)) Change(wire, samples, Format::kBinary, random);
                   return wire;
                 },
             .cost = 2});
}

}  // namespace
}  // namespace mooncake::metadata

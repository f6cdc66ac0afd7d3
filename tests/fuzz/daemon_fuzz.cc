// What dummy clients may ask of a daemon, and how a daemon is started.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "client/local_store.h"
#include "daemon/calls.h"
#include "daemon/flags.h"
#include "daemon/stats_command.h"
#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "metadata/memory/memory_metadata.h"
#include "obs/prometheus_metrics.h"
#include "runtime/real_runtime.h"
#include "support/test_cluster.h"
#include "transfer/memory/memory_network.h"

namespace mooncake::daemon {
namespace {

using client::CallFrame;
using client::CallType;
using fuzz::ChangeFields;
using fuzz::Format;
using fuzz::kPassword;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using fuzz::WrongError;
using google::protobuf::Message;

constexpr uint32_t kSlot = 3;
constexpr uint32_t kSequence = 9;
constexpr uint64_t kRegion = 7;
constexpr uint64_t kRegionBytes = 4096;

// A daemon's insides around a store that is a cluster of its own, with one client attached.
class OneClient {
 public:
  OneClient() {
    session_ = sessions_.Create(0, 1);
    auto control = *MappedMemory::MapShared(client::kControlBytes, 0, false);
    reinterpret_cast<uint32_t*>(control.bytes().data())[kSlot] = kSequence;
    const auto region = *MappedMemory::MapShared(kRegionBytes, 0, false);
    const auto copy = [](const MappedMemory& memory) {
      return client::Descriptor(dup(memory.fd()));
    };
    EXPECT_TRUE(session_->Attach(copy(control), client::kControlBytes).ok());
    EXPECT_TRUE(session_->Register(kRegion, copy(region), kRegionBytes).ok());
  }
  ~OneClient() { store_->Close(); }

  Store& store() { return *store_; }

  // The first byte of the input is the type of the call, the rest its message.
  Status Serve(const std::string& input, CallFrame* frame) {
    const auto type = static_cast<CallType>(input.empty() ? 0 : input[0]);
    const std::string body = input.empty() ? "" : input.substr(1);
    const MutableBytes into = frame->Start(type, -1, body.size());
    if (!body.empty()) std::memcpy(into.data(), body.data(), body.size());
    return calls_.Serve(*session_, messages_, frame);
  }

 private:
  std::unique_ptr<client::LocalStore> OpenStore() {
    client::StoreParts parts;
    auto runtime = std::make_unique<runtime::RealRuntime>();
    parts.metrics = std::make_unique<obs::PrometheusMetrics>("default");
    parts.metadata = std::make_unique<metadata::MemoryMetadata>(
        std::make_shared<metadata::MemoryState>(), *runtime);
    parts.transport = std::make_unique<transfer::MemoryTransport>(network_);
    parts.node = *node::Node::Start(testing::TestCluster::Config("a"),
                                    {*runtime, *parts.metadata, *parts.transport, *parts.metrics});
    parts.runtime = std::move(runtime);
    StoreConfig config;
    config.request_timeout_ms = 2'000;
    return std::make_unique<client::LocalStore>(config, std::move(parts));
  }

  runtime::RealRuntime network_runtime_;
  transfer::MemoryNetwork network_{network_runtime_};
  std::unique_ptr<client::LocalStore> store_ = OpenStore();
  Sessions sessions_{*store_->parts().runtime, *store_->parts().metrics};
  Scratch scratch_{1 << 20, 1 << 24};
  SessionPtr session_;
  Calls::Messages messages_;
  Calls calls_{*store_, sessions_, scratch_};
};

struct Kind {
  CallType type;
  std::shared_ptr<Message> request;
  std::shared_ptr<Message> reply;
};

template <typename Answered, typename Asked>
Kind KindOf(CallType type, Asked asked) {
  if constexpr (requires { asked.mutable_keys(); }) {
    asked.mutable_keys()->set_blob("keyk");
    asked.mutable_keys()->add_sizes(3);
    asked.mutable_keys()->add_sizes(1);
  }
  if constexpr (requires { asked.mutable_mark(); }) {
    asked.mutable_mark()->set_slot(kSlot);
    asked.mutable_mark()->set_sequence(kSequence);
  }
  return {type, std::make_shared<Asked>(asked), std::make_shared<Answered>()};
}

std::vector<Kind> Kinds() {
  v1::PutRequest put;
  for (const uint64_t region : {uint64_t{0}, kRegion}) {
    put.add_piece_counts(1);
    put.add_regions(region);
    put.add_offsets(0);
    put.add_sizes(10);
  }
  put.set_inline_bytes(std::string(100, 'i'));
  put.mutable_policy()->set_replica_num(1);
  v1::AcquireRequest acquire;
  for (int i = 0; i < 2; ++i) acquire.add_limits(1000);
  acquire.set_allow_inline(true);
  v1::AcquireRequest placed = acquire;
  placed.set_allow_inline(false);
  return {KindOf<v1::CodesReply>(CallType::kPut, put),
          KindOf<v1::AcquireReply>(CallType::kAcquire, acquire),
          KindOf<v1::AcquireReply>(CallType::kAcquire, placed),
          KindOf<v1::CodesReply>(CallType::kExist, v1::KeysRequest()),
          KindOf<v1::CodesReply>(CallType::kRemove, v1::KeysRequest()),
          KindOf<v1::SizesReply>(CallType::kSizes, v1::KeysRequest()),
          KindOf<v1::HealthReply>(CallType::kHealth, v1::HealthRequest()),
          KindOf<v1::RemoveAllReply>(CallType::kRemoveAll, v1::RemoveAllRequest()),
          KindOf<v1::MetricsReply>(CallType::kMetrics, v1::MetricsRequest())};
}

std::string InputOf(const Kind& kind, const Message& message) {
  return static_cast<char>(kind.type) + message.SerializeAsString();
}

std::string CheckAnswer(const std::vector<Kind>& kinds, CallType asked, const CallFrame& frame) {
  MC_FUZZ_CHECK(frame.header().type == asked);
  if (frame.header().code != 0) {
    MC_FUZZ_CHECK(ErrorName(static_cast<ErrorCode>(frame.header().code)) != "Unknown");
    MC_FUZZ_CHECK(frame.header().size > 0 && frame.header().size < 4096);
    return kRight;
  }
  for (const Kind& kind : kinds) {
    if (kind.type == asked) MC_FUZZ_CHECK(frame.Unpack(kind.reply.get()));
  }
  return kRight;
}

TEST(DaemonFuzz, ACallIsAnsweredWithAReplyThatCanBeReadOrRefused) {
  OneClient client;
  const std::vector<Kind> kinds = Kinds();
  std::vector<std::string> samples;
  for (const Kind& kind : kinds) samples.push_back(InputOf(kind, *kind.request));
  RunTarget({.samples = samples,
             .format = Format::kBinary,
             .check =
                 [&](const std::string& input) {
                   CallFrame frame;
                   const Status served = client.Serve(input, &frame);
                   const auto type = static_cast<CallType>(input.empty() ? 0 : input[0]);
                   if (!served.ok()) {
                     return WrongError(served.error(), ErrorCode::kInvalidArgument, "call");
                   }
                   return CheckAnswer(kinds, type, frame);
                 },
             .make =
                 [&](Random& random) {
                   const Kind& kind = random.Of(kinds);
                   const std::unique_ptr<Message> message(kind.request->New());
                   message->CopyFrom(*kind.request);
                   if (!random.OneIn(10)) ChangeFields(*message, random);
                   const std::string input = InputOf(kind, *message);
                   return random.OneIn(4) ? InputFrom({input}, Format::kBinary, random) : input;
                 },
             .allocated_bytes_max = 3 * fuzz::kReservedByParse,
             .allocated_per_byte_max = fuzz::kMessagePerByteMax,
             .cost = 4});
  EXPECT_TRUE(client.store().Put("after", BytesOf("all")).ok());
  EXPECT_EQ(client.store().Get("after").value_or(""), "all");
}

// The arguments, one a line; behind a line "=" the file of --config.
TEST(DaemonFuzz, ACommandLineIsReadOrRefusedAndShowsNoPassword) {
  const std::string password(kPassword);
  const std::string file =
      std::filesystem::path(::testing::TempDir()) / ("fuzz-config-" + std::to_string(getpid()));
  const std::string url = "redis://u:" + password + "@h";
  RunTarget({.samples = {"run\n--local-hostname=h\n--metadata-url\n" + url + "\n--drain-on-exit",
                         "--print-config\n--label=a=b\n--labels\nc=d\n=\nlocal_hostname = h\n# no\n"
                         "metadata-url = " +
                             url + "\nscratch_bytes=1M\ntransport_metadata_url = " + url,
                         "stats\n--server\nh:1\n--json", "--help", "run\n--print-config\n=\n"},
             .check =
                 [&](const std::string& input) {
                   const size_t end = std::min(input.find("\n=\n"), input.size());
                   std::ofstream(file, std::ios::binary) << std::string_view(input).substr(end);
                   std::vector<std::string> arguments;
                   for (const auto line :
                        base::Split(std::string_view(input).substr(0, end), '\n')) {
                     // Files of this machine are none of the test's.
                     const bool names_file = line.find("file") != std::string_view::npos ||
                                             line.find("config") == 2 || line.find("FILE") == 2;
                     if (!names_file || line == "--print-config") arguments.emplace_back(line);
                   }
                   if (end < input.size()) arguments.insert(arguments.end(), {"--config", file});
                   const Result<CommandLine> command = ParseCommandLine(arguments, {});
                   if (!command)
                     return WrongError(command.error(), ErrorCode::kInvalidArgument, "");
                   MC_FUZZ_CHECK(command->text.find(":" + password + "@") == std::string::npos);
                   return kRight;
                 },
             .allocated_per_byte_max = 600,
             .cost = 8});
  std::filesystem::remove(file);
}

TEST(DaemonFuzz, AnAnswerToStatsHasABodyOrIsShown) {
  RunTarget({.samples = {"HTTP/1.1 200 OK\r\nA: b\r\n\r\n{}", "HTTP/1.0 404 Not Found\r\n\r\n"},
             .check = [](const std::string& input) {
               const Result<std::string> body = BodyOf("h:1/stats", input);
               if (!body) return WrongError(body.error(), ErrorCode::kTransport, "h:1/stats");
               MC_FUZZ_CHECK(input.ends_with("\r\n\r\n" + *body));
               return kRight;
             }});
}

}  // namespace
}  // namespace mooncake::daemon

// What a peer may send to a node: columns of messages, whole requests, and replies to a read.
#include <gtest/gtest.h>

#include <cstring>

#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "fuzz/node_kinds.h"
#include "mooncake/store.h"
#include "node/node_service.h"
#include "node/read_receiver.h"
#include "node/wire.h"
#include "support/test_cluster.h"

namespace mooncake::node {
namespace {

using fuzz::ChangeFields;
using fuzz::Format;
using fuzz::kMessagePerByteMax;
using fuzz::kReservedByParse;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using google::protobuf::Message;
using testing::Simulated;
using testing::TestCluster;
using testing::TestNode;

template <typename Sample>
auto ChangedBytesOrFields(const Sample& sample) {
  return [sample](Random& random) {
    if (random.OneIn(3)) {
      return InputFrom({sample.SerializeAsString()}, Format::kBinary, random);
    }
    Sample changed = sample;
    ChangeFields(changed, random);
    return changed.SerializeAsString();
  };
}

TEST(NodeFuzz, KeysAreReadAsTheyAreWrittenOrRefused) {
  v1::Keys sample;
  for (const char* key : {"a", "key", "\xe2\x82\xac"}) AddKey(key, &sample);
  RunTarget({.samples = {sample.SerializeAsString()},
             .format = Format::kBinary,
             .check =
                 [](const std::string& input) {
                   v1::Keys keys;
                   std::vector<std::string_view> read;
                   if (!keys.ParseFromString(input) || !ReadKeys(keys, &read)) return kRight;
                   MC_FUZZ_CHECK(read.size() == static_cast<size_t>(keys.sizes_size()));
                   v1::Keys again;
                   for (const std::string_view key : read) {
                     MC_FUZZ_CHECK(!key.empty() && key.size() <= kKeySizeMax);
                     AddKey(key, &again);
                   }
                   MC_FUZZ_CHECK(again.blob() == keys.blob());
                   return kRight;
                 },
             .make = ChangedBytesOrFields(sample),
             .allocated_bytes_max = 2 * kReservedByParse});
}

TEST(NodeFuzz, RoutesAreReadAsTheyAreWrittenOrRefused) {
  v1::InventoryReply sample;
  sample.add_scopes()->set_tenant("t");
  NameTable ours("self:1");
  WriteRoute("key", {3, 10, 4, true, false, {Place{kSelf, 0, 64, 1}, Place{*ours.IndexOf("b:2")}}},
             ours, sample.add_routes());
  RunTarget({.samples = {sample.SerializeAsString()},
             .format = Format::kBinary,
             .check =
                 [](const std::string& input) {
                   v1::InventoryReply reply;
                   if (!reply.ParseFromString(input)) return kRight;
                   NameTable names("self:1");
                   ScopeTable scopes;
                   const auto entries = ReadScopes(reply.scopes(), scopes);
                   for (const v1::Route& route : reply.routes()) {
                     KeyedRoute read;
                     if (!ReadKeyedRoute(route, entries, names, &read)) continue;
                     v1::InventoryReply out;
                     ScopeColumn column(scopes, out.mutable_scopes());
                     WriteKeyedRoute(read, column, names, out.add_routes());
                     KeyedRoute again;
                     MC_FUZZ_CHECK(ReadKeyedRoute(out.routes(0), ReadScopes(out.scopes(), scopes),
                                                  names, &again));
                     MC_FUZZ_CHECK(again.key == read.key && again.ref.hash == read.ref.hash);
                     MC_FUZZ_CHECK(again.route.version == read.route.version &&
                                   again.route.size == read.route.size &&
                                   again.route.replicas == read.route.replicas &&
                                   again.published_ms == read.published_ms);
                   }
                   return kRight;
                 },
             .make = ChangedBytesOrFields(sample),
             .allocated_bytes_max = 2 * kReservedByParse,
             .allocated_per_byte_max = kMessagePerByteMax});
}

// A request as the transport hands it over, in the bytes of an input.
struct Request {
  MessageType type = MessageType::kPing;
  uint64_t payload_size = 0;
  std::string message;

  std::string ToInput() const {
    std::string input(1, static_cast<char>(type));
    input.append(reinterpret_cast<const char*>(&payload_size), sizeof(payload_size));
    return input + message;
  }
  static Request From(const std::string& input) {
    Request request;
    if (input.size() < 1 + sizeof(payload_size)) return request;
    request.type = static_cast<MessageType>(input[0]);
    std::memcpy(&request.payload_size, input.data() + 1, sizeof(payload_size));
    request.message = input.substr(1 + sizeof(payload_size));
    return request;
  }
};

// What its message announces, as far as requests of this type have a payload.
uint64_t PayloadOf(const Message& request) {
  const auto* sizes = request.GetDescriptor()->FindFieldByName("value_sizes");
  const bool charges = request.GetDescriptor()->name().starts_with("QuotaCharge");
  if (sizes == nullptr || charges) return 0;
  uint64_t sum = 0;
  for (int i = 0; i < request.GetReflection()->FieldSize(request, sizes); ++i) {
    sum += request.GetReflection()->GetRepeatedUInt64(request, sizes, i) + kChecksumBytes;
  }
  return sum;
}

std::string SomeRequest(const std::vector<RequestKind>& kinds, Random& random) {
  const RequestKind& kind = random.Of(kinds);
  Request request{kind.type, 0, {}};
  const std::unique_ptr<Message> message(kind.request->New());
  message->CopyFrom(*kind.request);
  if (!random.OneIn(10)) {
    const auto* origin = message->GetDescriptor()->FindFieldByName("origin");
    auto* asker = message->GetReflection()->MutableMessage(message.get(), origin);
    static_cast<v1::Origin*>(asker)->set_sequence(random.Next());
  }
  if (!random.OneIn(10)) ChangeFields(*message, random);
  request.payload_size = random.OneIn(10) ? random.Extreme() : PayloadOf(*message);
  request.message = message->SerializeAsString();
  if (random.OneIn(4)) request.message = InputFrom({request.message}, Format::kBinary, random);
  return request.ToInput();
}

// Who asks; the same field in all requests. Of a number that came before, whatever with, the reply
// is that of then.
using Seen = std::set<std::pair<std::string, uint64_t>>;
bool IsNew(const Request& request, Seen& seen) {
  v1::PingRequest ping;
  (void)ping.ParseFromString(request.message);
  return ping.origin().sequence() == 0 ||
         seen.emplace(ping.origin().node(), ping.origin().sequence()).second;
}

// Serves a request as a transport would, its payload all zero.
std::string Serve(NodeService& service, const Request& request, const RequestKind* kind,
                  uint64_t deadline_ms) {
  const auto call = service.Accept(
      {static_cast<uint16_t>(request.type), request.message, request.payload_size, deadline_ms});
  if (!call) return kRight;
  MC_FUZZ_CHECK(call->Prepare(false) || call->Prepare(true));
  uint64_t left = request.payload_size;
  for (const MutableBytes target : call->PayloadTargets()) {
    MC_FUZZ_CHECK(target.size() <= left);
    left -= target.size();
    if (target.data() != nullptr) std::memset(target.data(), 0, target.size());
  }
  MC_FUZZ_CHECK(left == 0);
  Reply reply;
  MC_FUZZ_CHECK(call->Run(false, reply) || call->Run(true, reply));
  if (kind != nullptr && !kind->reply->ParseFromString(reply.message)) {
    return "no reply to a " + kind->request->GetTypeName() + ": " + reply.message;
  }
  return kRight;
}

TEST(NodeFuzz, ARequestIsAnsweredWithAReplyThatCanBeReadOrRefused) {
  const std::vector<RequestKind> kinds = RequestKinds();
  std::vector<std::string> samples;
  for (const RequestKind& kind : kinds) {
    samples.push_back(
        Request{kind.type, PayloadOf(*kind.request), kind.request->SerializeAsString()}.ToInput());
  }
  Simulated(1, [&](TestCluster& cluster) {
    auto& node = cluster.Start("a");
    NodeService service;
    service.Open(node.core());
    Seen seen;
    const auto check = [&](const std::string& input) {
      const Request request = Request::From(input);
      const bool fresh = IsNew(request, seen);
      const RequestKind* kind = nullptr;
      for (const RequestKind& one : kinds) {
        if (one.type == request.type && fresh) kind = &one;
      }
      return Serve(service, request, kind, node.Deadline());
    };
    RunTarget({.samples = samples,
               .format = Format::kBinary,
               .check = check,
               .make = [&](Random& random) { return SomeRequest(kinds, random); },
               .allocated_bytes_max = 4 * kReservedByParse,
               .allocated_per_byte_max = 2 * kMessagePerByteMax});
    // It is as good as before.
    const std::string value(1000, 'v');
    EXPECT_TRUE(node.Put("after", value).ok());
    EXPECT_EQ(node.Get("after").value_or(""), value);
    EXPECT_LE(node.UsedBytes(), testing::kMiB);
  });
}

// Two items that were asked of a peer, each with 100 bytes of memory.
class TwoItems final : public ReadPlan {
 public:
  explicit TwoItems(bool ranged) : ranged_(ranged) {
    for (ReadItem& item : items_) item.limit = kBytes;
    route_.size = kBytes;
  }
  NameTable& names() override { return names_; }
  const ReadItem& item(uint32_t i) const override { return items_[i]; }
  bool ranged() const override { return ranged_; }
  const Route& known_route(uint32_t) const override { return route_; }
  std::optional<std::span<const MutableBytes>> TargetsOf(uint32_t i, uint64_t size) override {
    if (size > kBytes) return std::nullopt;
    targets_[i] = {memory_[i], size};
    return std::span<const MutableBytes>(&targets_[i], 1);
  }

 private:
  static constexpr uint64_t kBytes = 100;
  const bool ranged_;
  NameTable names_{"self:1"};
  ReadItem items_[2];
  Route route_;
  std::byte memory_[2][kBytes];
  MutableBytes targets_[2];
};

// The first byte says what was asked, the next eight the size of the payload.
std::string ReceiveReply(const std::string& input) {
  const Request request = Request::From(input);
  const auto way = static_cast<uint8_t>(request.type);
  TwoItems plan((way & 1) != 0);
  const std::vector<uint32_t> items = {0, 1};
  ReadReceiver receiver(plan, items, (way & 2) != 0);
  const auto pieces = receiver.OnReply(request.message, request.payload_size);
  if (!pieces) {
    return fuzz::WrongError(pieces.error(), ErrorCode::kTransport, "reply");
  }
  MC_FUZZ_CHECK(receiver.codes.size() == 2 && receiver.sizes.size() == 2);
  uint64_t size = 0;
  for (const MutableBytes piece : *pieces) size += piece.size();
  MC_FUZZ_CHECK(size == request.payload_size);
  return kRight;
}

TEST(NodeFuzz, AReplyToAReadFillsItsItemsOrIsMalformed) {
  v1::GetReply get;
  v1::ReadReply read;
  for (int i = 0; i < 2; ++i) {
    get.add_codes(0);
    get.add_sizes(100);
    get.add_checksums(1);
    get.add_versions(4);
    read.add_codes(0);
  }
  const auto input = [](int way, uint64_t payload_size, const Message& message) {
    return Request{static_cast<MessageType>(way), payload_size, message.SerializeAsString()}
        .ToInput();
  };
  v1::GetReply routed = get;
  routed.set_codes(1, -1);
  routed.add_routed(0);
  routed.add_routes()->add_replicas()->set_owner("b:2");
  RunTarget({.samples = {input(0, 200, get), input(1, 200, get), input(2, 200, read),
                         input(0, 0, routed)},
             .format = Format::kBinary,
             .check = ReceiveReply,
             .make =
                 [&](Random& random) {
                   const int way = static_cast<int>(random.Below(4));
                   const uint64_t payload = random.OneIn(2) ? 200 : random.Extreme();
                   v1::GetReply got = random.OneIn(2) ? get : routed;
                   v1::ReadReply placed = read;
                   Message& message = way < 2 ? static_cast<Message&>(got) : placed;
                   ChangeFields(message, random);
                   const std::string made = input(way, payload, message);
                   return random.OneIn(3) ? InputFrom({made}, Format::kBinary, random) : made;
                 },
             .allocated_bytes_max = 2 * kReservedByParse,
             .allocated_per_byte_max = kMessagePerByteMax});
}

}  // namespace
}  // namespace mooncake::node

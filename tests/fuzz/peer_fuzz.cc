// A node among peers whose replies are not what it can count on.
#include <gtest/gtest.h>

#include "fuzz/fuzz.h"
#include "fuzz/messages.h"
#include "fuzz/node_kinds.h"
#include "node/node.h"
#include "obs/null_metrics.h"
#include "support/test_cluster.h"
#include "transfer/memory/memory_network.h"

namespace mooncake::node {
namespace {

using fuzz::ChangeFields;
using fuzz::Format;
using fuzz::kRight;
using fuzz::Random;
using fuzz::RunTarget;
using google::protobuf::Message;
using testing::Simulated;
using testing::TestCluster;
using testing::ValueOf;

constexpr size_t kValueBytes = 1000;
constexpr int kKeys = 20;

// Passes a call's events on, with another message in place of the reply's.
class ChangedReply final : public CallObserver {
 public:
  ChangedReply(CallObserver& inner, std::function<std::string(std::string_view)> change)
      : inner_(inner), change_(std::move(change)) {}
  void OnSend(size_t piece, ConstBytes chunk) override { inner_.OnSend(piece, chunk); }
  void OnRestart() override { inner_.OnRestart(); }
  uint64_t EndSize() const override { return inner_.EndSize(); }
  Status OnEnd() override { return inner_.OnEnd(); }
  Result<std::span<const MutableBytes>> OnReply(std::string_view message,
                                                uint64_t payload_size) override {
    message_ = change_(message);
    return inner_.OnReply(message_, payload_size);
  }
  void OnReceive(size_t piece, ConstBytes chunk) override { inner_.OnReceive(piece, chunk); }

 private:
  CallObserver& inner_;
  const std::function<std::string(std::string_view)> change_;
  std::string message_;
};

// A transport that changes half of the replies while it has a seed.
class LyingTransport final : public Transport {
 public:
  explicit LyingTransport(Transport& inner) : inner_(inner) {}
  void LieFrom(std::optional<uint64_t> seed) {
    random_.reset();
    if (seed) random_.emplace(*seed);
  }

  TransportCapabilities Capabilities() const override { return inner_.Capabilities(); }
  Result<std::string> Listen(const std::string& host, uint16_t port, Service* service) override {
    return inner_.Listen(host, port, service);
  }
  void CallMany(std::span<Call> calls) override {
    std::vector<std::unique_ptr<ChangedReply>> observers;
    std::vector<CallObserver*> theirs;
    for (Call& call : calls) {
      theirs.push_back(call.observer);
      const uint16_t type = call.type;
      observers.push_back(std::make_unique<ChangedReply>(
          *call.observer, [this, type](std::string_view reply) { return Changed(type, reply); }));
      call.observer = observers.back().get();
    }
    inner_.CallMany(calls);
    for (size_t i = 0; i < calls.size(); ++i) calls[i].observer = theirs[i];
  }
  Result<std::string> RegisterMemory(MutableBytes range) override {
    return inner_.RegisterMemory(range);
  }
  void UnregisterMemory(MutableBytes range) override { inner_.UnregisterMemory(range); }
  void AccessMany(std::span<RemoteAccess> accesses) override { inner_.AccessMany(accesses); }
  void Forget(std::string_view endpoint) override { inner_.Forget(endpoint); }
  void Close() override { inner_.Close(); }

 private:
  std::string Changed(uint16_t type, std::string_view reply) {
    std::string changed(reply);
    if (!random_ || random_->OneIn(2)) return changed;
    if (random_->OneIn(3)) return InputFrom({changed}, Format::kBinary, *random_);
    for (const RequestKind& kind : kinds_) {
      if (static_cast<uint16_t>(kind.type) != type) continue;
      const std::unique_ptr<Message> message(kind.reply->New());
      (void)message->ParseFromString(changed);
      ChangeFields(*message, *random_);
      changed = message->SerializeAsString();
    }
    return changed;
  }

  Transport& inner_;
  const std::vector<RequestKind> kinds_ = RequestKinds();
  std::optional<Random> random_;  // One thread runs at a time in a simulation.
};

// A node of the cluster that hears only lies, and its calls.
class MisledNode {
 public:
  explicit MisledNode(TestCluster& cluster)
      : runtime_(cluster.runtime()),
        metadata_(std::shared_ptr<metadata::MemoryState>(std::shared_ptr<void>(), &cluster.state()),
                  cluster.runtime()),
        network_(cluster.network()),
        transport_(network_),
        node_(*Node::Start(TestCluster::Config("misled"),
                           {cluster.runtime(), metadata_, transport_, metrics_})) {}
  ~MisledNode() { node_->Close(); }
  LyingTransport& transport() { return transport_; }

  Status Put(const std::string& key, const std::string& value) {
    const ConstBytes bytes = BytesOf(value);
    const WriteItem item{Ref(key), {&bytes, 1}, bytes.size()};
    return std::move(WriteValues(node_->core(), {&item, 1}, {.deadline_ms = Deadline()})[0]);
  }
  Result<std::string> Get(const std::string& key) {
    std::string value;
    ReadItem item{Ref(key), {}, 0, 0};
    const auto allocate = [&](size_t, uint64_t size) -> std::optional<MutableBytes> {
      if (size > 2 * kValueBytes) return std::nullopt;
      value.resize(size);
      return MutableBytes(reinterpret_cast<std::byte*>(value.data()), size);
    };
    auto read = ReadValues(node_->core(), {{&item, 1}, false, allocate, Deadline()});
    if (!read[0].ok()) return std::move(read[0]).error();
    return value;
  }
  Status Remove(const std::string& key) {
    const KeyRef ref = Ref(key);
    return std::move(RemoveKeys(node_->core(), {&ref, 1}, Deadline())[0]);
  }
  void Look(const std::string& key) {
    const KeyRef ref = Ref(key);
    (void)ExistKeys(node_->core(), {&ref, 1}, Deadline());
    (void)FindRoutes(node_->core(), {&ref, 1}, Deadline());
  }

 private:
  KeyRef Ref(std::string_view key) { return MakeKeyRef(*node_->core().scopes.Intern({}), key); }
  uint64_t Deadline() { return runtime_.NowMs() + 5'000; }

  Runtime& runtime_;
  metadata::MemoryMetadata metadata_;
  transfer::MemoryTransport network_;
  LyingTransport transport_;
  obs::NullMetrics metrics_;
  std::unique_ptr<Node> node_;
};

// Some calls of a node that is lied to. What it reads is what was put under that key, or an error.
std::string CallMisled(MisledNode& node, const std::string& input) {
  Random random(std::hash<std::string>()(input));
  node.transport().LieFrom(random.Next());
  for (int calls = 0; calls < 6; ++calls) {
    const std::string key = "key-" + std::to_string(random.Below(kKeys));
    switch (random.Below(5)) {
      case 0: (void)node.Put(key, ValueOf(key, kValueBytes)); break;
      case 1: (void)node.Remove(key); break;
      case 2: node.Look(key); break;
      default: {
        const Result<std::string> value = node.Get(key);
        MC_FUZZ_CHECK(!value || *value == ValueOf(key, kValueBytes));
      }
    }
  }
  node.transport().LieFrom(std::nullopt);
  return kRight;
}

TEST(PeerFuzz, ANodeThatIsLiedToReturnsNoWrongValueAndHarmsNobody) {
  Simulated(1, [](TestCluster& cluster) {
    auto& b = cluster.Start("b");
    auto& c = cluster.Start("c");
    MisledNode misled(cluster);
    cluster.Settle();
    RunTarget({.samples = {"a sample is a seed"},
               .format = Format::kBinary,
               .check = [&](const std::string& input) { return CallMisled(misled, input); },
               .make = [](Random& random) { return random.Bytes(8); },
               .allocated_bytes_max = 100 * fuzz::kReservedByParse,
               .cost = 10});
    cluster.Settle();
    for (int i = 0; i < kKeys; ++i) {
      const std::string key = "after-" + std::to_string(i);
      const std::string value = ValueOf(key, kValueBytes);
      EXPECT_TRUE(b.Put(key, value).ok());
      EXPECT_EQ(c.Get(key).value_or(""), value);
    }
  });
}

}  // namespace
}  // namespace mooncake::node

#include "support/test_cluster.h"

#include <utility>

#include "base/check.h"
#include "base/hash.h"
#include "node/wire.h"
#include "runtime/sim_runtime.h"

namespace mooncake::testing {

namespace {

// What no caller waits for.
std::set<uint16_t> BackgroundTypes() {
  std::set<uint16_t> types;
  for (node::MessageType type :
       {node::MessageType::kPing, node::MessageType::kNotice, node::MessageType::kCheck,
        node::MessageType::kPull, node::MessageType::kMirror}) {
    types.insert(static_cast<uint16_t>(type));
  }
  return types;
}

}  // namespace

std::string ValueOf(std::string_view key, size_t size, uint64_t version) {
  std::string value(size, '\0');
  const uint64_t seed = base::Hash64(key) + version;
  for (size_t i = 0; i < size; ++i) {
    value[i] = static_cast<char>(base::Mix64(seed + i / 8) >> (i % 8 * 8));
  }
  return value;
}

TestNode::TestNode(Runtime& runtime, transfer::MemoryNetwork& network,
                   std::shared_ptr<metadata::MemoryState> state)
    : runtime_(runtime),
      service_(std::move(state), runtime),
      network_(network),
      metadata(service_, runtime),
      transport(network_, BackgroundTypes()) {}

Status TestNode::Open(const node::NodeConfig& config) {
  MC_TRY(node_, node::Node::Start(config, ports()));
  return Ok();
}

node::KeyRef TestNode::Ref(std::string_view key) {
  return node::MakeKeyRef(*core().scopes.Intern({}), key);
}

Status TestNode::Put(std::string_view key, std::string_view value, const ReplicateConfig* policy,
                     bool if_absent) {
  const ConstBytes bytes = BytesOf(value);
  const node::WriteItem item{Ref(key), {&bytes, 1}, bytes.size()};
  return std::move(node::WriteValues(core(), {&item, 1}, {policy, if_absent, Deadline()})[0]);
}

std::vector<Status> TestNode::PutAll(std::span<const std::string> keys, size_t size,
                                     const ReplicateConfig* policy) {
  std::vector<std::string> values;
  for (const std::string& key : keys) values.push_back(ValueOf(key, size));
  std::vector<ConstBytes> parts;
  for (const std::string& value : values) parts.push_back(BytesOf(value));
  std::vector<node::WriteItem> items;
  for (size_t i = 0; i < keys.size(); ++i) items.push_back({Ref(keys[i]), {&parts[i], 1}, size});
  return node::WriteValues(core(), items, {policy, false, Deadline()});
}

Result<std::string> TestNode::Get(std::string_view key, uint64_t limit_ms) {
  std::string value;
  node::ReadItem item{Ref(key), {}, 0, 0};
  const auto allocate = [&](size_t, uint64_t size) {
    value.resize(size);
    return std::optional<MutableBytes>({reinterpret_cast<std::byte*>(value.data()), size});
  };
  auto read = node::ReadValues(core(), {{&item, 1}, false, allocate, Deadline(limit_ms)});
  if (!read[0].ok()) return std::move(read[0]).error();
  return value;
}

std::vector<Result<uint64_t>> TestNode::GetAll(std::span<const std::string> keys, size_t size) {
  std::vector<std::vector<std::byte>> memory(keys.size(), std::vector<std::byte>(size));
  std::vector<MutableBytes> targets(memory.begin(), memory.end());
  std::vector<node::ReadItem> items;
  for (size_t i = 0; i < keys.size(); ++i) items.push_back({Ref(keys[i]), {&targets[i], 1}, size});
  auto results = node::ReadValues(core(), {items, false, {}, Deadline()});
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::string_view bytes(reinterpret_cast<const char*>(memory[i].data()), size);
    if (results[i].ok() && bytes != ValueOf(keys[i], size)) {
      results[i] = ChecksumMismatch("wrong bytes for " + keys[i]);
    }
  }
  return results;
}

std::vector<Result<Existence>> TestNode::ExistAll(std::span<const std::string> keys) {
  std::vector<node::KeyRef> refs;
  for (const std::string& key : keys) refs.push_back(Ref(key));
  std::vector<Result<Existence>> results;
  for (const Status& status : node::ExistKeys(core(), refs, Deadline())) {
    const bool told = status.ok() || status.code() == ErrorCode::kNotFound;
    results.push_back(
        told ? Result<Existence>(status.ok() ? Existence::kPresent : Existence::kMissing)
             : status.error());
  }
  return results;
}

Result<node::Route> TestNode::Find(std::string_view key) {
  const node::KeyRef ref = Ref(key);
  return std::move(node::FindRoutes(core(), {&ref, 1}, Deadline())[0]);
}

Status TestNode::Remove(std::string_view key) {
  const node::KeyRef ref = Ref(key);
  return std::move(node::RemoveKeys(core(), {&ref, 1}, Deadline())[0]);
}

TestCluster::TestCluster(Runtime& runtime, uint64_t stall_ms)
    : runtime_(runtime),
      state_(std::make_shared<metadata::MemoryState>()),
      network_(runtime, stall_ms),
      stall_ms_(stall_ms) {}

TestCluster::~TestCluster() {
  network_.Heal();
  for (auto& node : nodes_) node->Close();
}

node::NodeConfig TestCluster::Config(std::string name, uint64_t segment_bytes) {
  node::NodeConfig config;
  config.options.routed_writes = true;
  config.options.stall_timeout_ms = kStallMs;
  config.options.request_timeout_ms = 20'000;
  config.membership.lease_ttl_ms = 9'000;
  config.membership.heartbeat_interval_ms = 3'000;
  config.listen_host = name;
  config.host_id = "host-of-" + name;
  config.pid = 1;
  const char* stores = segment_bytes > 0 ? "true" : "false";
  config.labels = {{"route", stores}, {"storage", stores}};
  config.segment_name = name + "-segment";
  config.segment_bytes = segment_bytes;
  config.stable_id = std::move(name);
  return config;
}

std::unique_ptr<TestNode> TestCluster::Make() {
  return std::make_unique<TestNode>(runtime_, network_, state_);
}

TestNode& TestCluster::Start(const node::NodeConfig& config) {
  nodes_.push_back(Make());
  const Status status = nodes_.back()->Open(config);
  MC_CHECK(status.ok());
  Settle();
  nodes_.back()->transport.Take();
  return *nodes_.back();
}

void TestCluster::Settle() {
  for (auto& node : nodes_) {
    if (node->node().gate().closed()) continue;
    node->core().membership.RefreshTo(0, runtime_.NowMs() + 5'000);
    node->core().outbox.Flush(runtime_.NowMs() + 5'000);
  }
}

void TestCluster::Kill(TestNode& node) {
  network_.SetDown(node.node().endpoint(), true);
  node.metadata.SetFault(MetadataFault::kDown);
}

std::string TestCluster::KeyAt(TestNode& asked, std::string_view authority, int i) {
  return KeysAt(asked, authority, i + 1).back();
}

std::vector<std::string> TestCluster::KeysAt(TestNode& asked, std::string_view authority,
                                             int count) {
  const node::ViewPtr view = asked.core().view();
  std::vector<std::string> keys;
  for (int i = 0; static_cast<int>(keys.size()) < count; ++i) {
    MC_CHECK(i < 1'000'000);
    std::string key = "key-" + std::to_string(i);
    const auto ranks = view->RanksOf(asked.Ref(key).hash);
    if (ranks.empty() || view->node(ranks[0]).lease.id.ToString() != authority) continue;
    keys.push_back(std::move(key));
  }
  return keys;
}

void Simulated(uint64_t seed, const std::function<void(TestCluster&)>& body, uint64_t stall_ms) {
  runtime::SimRuntime runtime(seed);
  runtime.Run([&] {
    TestCluster cluster(runtime, stall_ms);
    body(cluster);
  });
}

}  // namespace mooncake::testing

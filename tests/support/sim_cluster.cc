#include "support/sim_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/hash.h"
#include "obs/log.h"
#include "support/sim_checks.h"
#include "support/sim_client.h"

namespace mooncake::testing {

namespace {

// In proportion to each other as in production, but short.
constexpr uint64_t kRequestTimeoutMs = 20'000;
constexpr uint64_t kStallMs = 3'000;
constexpr uint64_t kLeaseMs = 10'000;
// Reservations of dead writers are kept for a request's time and the reconciler's grace of 10 s;
// it looks at all extents in 16 rounds of at most 5 s.
constexpr uint64_t kSettleMs = kRequestTimeoutMs + 10'000 + 16 * 5'000 + 10'000;
// Faults are forgotten by then: suspicions, takeovers, lost leases.
constexpr uint64_t kCalmMs = 2 * kLeaseMs;
constexpr uint64_t kAnswerMs = 1'000;
constexpr uint64_t kWallSkewMsMax = 60'000;
// What the last step of a call may take once its time is over.
constexpr uint64_t kLastStepMs = 500;

}  // namespace

SimCluster::SimCluster(runtime::SimRuntime& runtime, const SimOptions& options)
    : runtime_(runtime),
      options_(options),
      random_(base::Mix64(options.seed + 0x636c7573746572)),
      network_(runtime, kStallMs),
      metadata_state_(std::make_shared<metadata::MemoryState>()),
      metadata_(metadata_state_, runtime) {
  network_.SetFaults({.latency_ms_max = 2});
  for (int i = 0; i < options.nodes; ++i) JoinNew();
  network_.SetFaults(options.faults);
}

SimCluster::~SimCluster() {
  StopClients();
  for (auto& reaper : reapers_) reaper->Join();
  for (auto& node : nodes_) node->Close();
}

// n1 and n2 share one, where there are two for each.
std::string SimCluster::HostOf(const std::string& stable_id) const {
  const int number = std::atoi(stable_id.c_str() + 1);
  return fmt::format("host-{}", (number - 1) / options_.nodes_per_host);
}

node::NodeConfig SimCluster::ConfigFor(const std::string& stable_id) const {
  node::NodeConfig config;
  config.stable_id = stable_id;
  config.listen_host = stable_id;
  config.host_id = HostOf(stable_id);
  config.labels = {{"route", "true"}, {"storage", "true"}};
  config.segment_name = stable_id + "-segment";
  config.segment_bytes = options_.segment_bytes;
  config.options.routed_writes = true;
  config.options.request_timeout_ms = kRequestTimeoutMs;
  config.options.stall_timeout_ms = kStallMs;
  config.membership.lease_ttl_ms = kLeaseMs;
  config.membership.heartbeat_interval_ms = kLeaseMs / 3;
  config.membership.quarantine_ms = 2'000;
  return config;
}

SimNode* SimCluster::Join(const std::string& stable_id, bool may_fail) {
  auto node = std::make_unique<SimNode>(runtime_, network_, metadata_, Pick(kWallSkewMsMax));
  node->metadata().SetFault(metadata_fault_);
  const Status status = node->Start(ConfigFor(stable_id));
  if (!status) {
    Note(fmt::format("{} cannot join: {}", stable_id, status.error().ToString()));
    if (!may_fail) Problem(fmt::format("{}: {}", stable_id, status.error().ToString()));
    return nullptr;
  }
  nodes_.push_back(std::move(node));
  Note(fmt::format("join {}", nodes_.back()->name()));
  return nodes_.back().get();
}

SimNode* SimCluster::JoinAhead(int count) {
  const MetadataFault fault = std::exchange(metadata_fault_, MetadataFault::kNone);
  SimNode* node = nullptr;
  std::vector<std::unique_ptr<Thread>> others;
  for (int i = 1; i < count; ++i) {
    others.push_back(runtime_.Spawn("sim-join", [&] { node = JoinNew(); }));
  }
  node = JoinNew();
  for (auto& other : others) other->Join();
  metadata_fault_ = fault;
  return node;
}

void SimCluster::Leave(SimNode& node) {
  Note(fmt::format("leave {}", node.name()));
  node.Close();
  Note(fmt::format("left {}", node.name()));
}

void SimCluster::DrainAndLeave(SimNode& node) {
  Note(fmt::format("drain {}", node.name()));
  const Result<uint64_t> left = node.Evacuate();
  if (!left.ok() || *left > 0) {
    Problem(
        fmt::format("{} cannot be drained: {}", node.name(),
                    left.ok() ? fmt::format("{} objects remain", *left) : left.error().ToString()));
  }
  Leave(node);
}

void SimCluster::Kill(SimNode& node) {
  Note(fmt::format("kill {}", node.name()));
  history_.Disturb(node.name(), runtime_.NowMs());
  node.Kill();
  reapers_.push_back(runtime_.Spawn("sim-reap", [&node] { node.Close(); }));
}

void SimCluster::Pause(SimNode& node) {
  Note(fmt::format("pause {}", node.name()));
  history_.Disturb(node.name(), runtime_.NowMs());
  node.SetPaused(true);
}

void SimCluster::Resume(SimNode& node) {
  if (!node.paused()) return;
  Note(fmt::format("resume {}", node.name()));
  node.SetPaused(false);
}

std::vector<SimNode*> SimCluster::Live() const {
  std::vector<SimNode*> live;
  for (const auto& node : nodes_) {
    if (node->live()) live.push_back(node.get());
  }
  return live;
}

SimNode* SimCluster::AnyLive() {
  const std::vector<SimNode*> live = Live();
  return live.empty() ? nullptr : live[Pick(live.size())];
}

void SimCluster::SetFaults(const transfer::NetworkFaults& faults) {
  Note("network faults");
  network_.SetFaults(faults);
}

void SimCluster::Partition() {
  std::vector<std::set<std::string>> groups(2);
  std::string text = "partition";
  for (SimNode* node : Live()) {
    const uint64_t group = Pick(2);
    groups[group].insert(node->endpoint());
    text += fmt::format(" {}:{}", node->stable_id(), group);
  }
  Note(text);
  network_.Partition(std::move(groups));
}

void SimCluster::HealNetwork() {
  Note("heal the network");
  network_.Heal();
  network_.SetFaults(options_.faults);
  for (auto& node : nodes_) {  // Heal knows of no pauses.
    if (node->paused()) network_.SetPaused(node->endpoint(), true);
  }
}

void SimCluster::BlockOneWay() {
  const std::vector<SimNode*> live = Live();
  if (live.size() < 2) return;
  const size_t from = Pick(live.size());
  const size_t to = (from + 1 + Pick(live.size() - 1)) % live.size();
  Note(fmt::format("block {} to {}", live[from]->name(), live[to]->name()));
  network_.Block(live[from]->endpoint(), live[to]->endpoint(), true);
}

void SimCluster::Accuse(SimNode& node) {
  Note(fmt::format("accuse {}", node.name()));
  (void)metadata_.ReportSuspect(*node::ParseNodeName(node.name()));
}

void SimCluster::SetMetadataFault(MetadataFault fault) {
  Note(fmt::format("metadata fault {}", static_cast<int>(fault)));
  metadata_fault_ = fault;
  for (auto& node : nodes_) {
    if (!node->dead()) node->metadata().SetFault(fault);
  }
}

void SimCluster::WipeMetadata() {
  Note("metadata wiped");
  metadata_state_->Forget();
}

void SimCluster::StartClients(const SimWorkload& workload) {
  workload_ = workload;
  stop_clients_ = false;
  for (int i = 0; i < workload.clients; ++i) {
    const uint64_t seed = base::Mix64(options_.seed * 1'000 + static_cast<uint64_t>(i) + 1);
    clients_.push_back(
        runtime_.Spawn("sim-client", [this, seed] { SimClient(*this, seed).Run(); }));
  }
}

void SimCluster::StopClients() {
  stop_clients_ = true;
  for (auto& client : clients_) client->Join();
  clients_.clear();
}

void SimCluster::Finish() {
  for (auto& node : nodes_) Resume(*node);
  SetMetadataFault(MetadataFault::kNone);
  HealNetwork();
  network_.SetFaults({.latency_ms_max = 2});
  // Under load, too, everything is well again; operations from here on have to succeed.
  runtime_.SleepMs(kCalmMs);
  StopClients();
  CheckLiveness();
  const HistoryRules rules{.limit_ms = kRequestTimeoutMs,
                           .took_ms_max = kRequestTimeoutMs + kLastStepMs,
                           .losses = options_.losses,
                           .revivals = options_.revivals,
                           .failures = options_.failures};
  for (std::string& problem : history_.Check(rules, &trace_)) Problem(std::move(problem));
  CheckChecksums();
  runtime_.SleepMs(kSettleMs);
  for (std::string& problem : CheckAccounting(Live())) Problem(std::move(problem));
}

void SimCluster::CheckLiveness() {
  const std::vector<SimNode*> live = Live();
  for (SimNode* writer : live) {
    const std::string key = "liveness-of-" + writer->name();
    const std::string value = PutValueOf(key, 1, 100);
    const uint64_t begin_ms = runtime_.NowMs();
    const Status put = writer->Put({key}, {value}, false, nullptr)[0];
    if (!put) Problem(fmt::format("{}: {}", key, put.error().ToString()));
    for (SimNode* reader : live) {
      const Result<std::string> got = reader->Get({key})[0];
      const std::string answer = got ? (*got == value ? "" : "wrong") : got.error().ToString();
      if (!answer.empty()) Problem(fmt::format("{} at {}: {}", key, reader->name(), answer));
    }
    const uint64_t took_ms = runtime_.NowMs() - begin_ms;
    if (took_ms > kAnswerMs) Problem(fmt::format("{}: took {} ms", key, took_ms));
  }
}

void SimCluster::CheckChecksums() {
  if (options_.corruption) return;
  for (const auto& node : nodes_) {
    if (node->mismatches() == 0) continue;
    Problem(fmt::format("{}: {} reads of bytes that were not those that had been put", node->name(),
                        node->mismatches()));
  }
}

std::string SimCluster::Problems() const {
  if (problems_.empty()) return {};
  std::string text;
  for (const std::string& problem : problems_) text += problem + "\n";
  if (!trace_.empty()) text += "what happened to the first key concerned:\n" + trace_;
  return text;
}

SimReport RunSim(const SimOptions& options, const std::function<void(SimCluster&)>& body) {
  const obs::LogLevel level = obs::GetLogLevel();
  obs::SetLogLevel(obs::LogLevel::kOff);
  SimReport report;
  runtime::SimRuntime runtime(options.seed, 3'600'000);
  runtime.Run([&] {
    SimCluster cluster(runtime, options);
    body(cluster);
    cluster.Finish();
    report.problems = cluster.Problems();
    report.operations = cluster.history().size();
  });
  report.trace_hash = runtime.TraceHash();
  obs::SetLogLevel(level);
  return report;
}

}  // namespace mooncake::testing

// mooncake-store-rs-client: the store as a daemon.
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <iostream>
#include <optional>

#include "daemon/daemon.h"
#include "daemon/flags.h"
#include "daemon/stats_command.h"
#include "mooncake/observability.h"
#include "obs/log.h"
#include "runtime/real_runtime.h"

namespace mooncake::daemon {

namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kDrainIncomplete = 3;
constexpr uint64_t kStopLimitMs = 9'500;
constexpr uint64_t kLookMs = 100;

// One line on stderr, which scripts look for.
void Say(const std::string& text) { std::cerr << fmt::format("{} {}\n", kProgram, text); }

sigset_t EndingSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  return signals;
}

// The next ending signal; empty: none within the time.
std::optional<int> WaitForSignal(uint64_t ms) {
  const sigset_t signals = EndingSignals();
  const timespec limit = {static_cast<time_t>(ms / 1'000),
                          static_cast<long>(ms % 1'000 * 1'000'000)};
  const int signal = sigtimedwait(&signals, nullptr, &limit);
  return signal > 0 ? std::optional(signal) : std::nullopt;
}

std::optional<obs::LogLevel> LevelOf(const std::string& text) {
  const std::pair<const char*, obs::LogLevel> levels[] = {
      {"debug", obs::LogLevel::kDebug},  {"trace", obs::LogLevel::kDebug},
      {"info", obs::LogLevel::kInfo},    {"warning", obs::LogLevel::kWarning},
      {"warn", obs::LogLevel::kWarning}, {"error", obs::LogLevel::kError},
      {"off", obs::LogLevel::kOff}};
  for (const auto& [name, level] : levels) {
    if (text == name) return level;
  }
  return std::nullopt;
}

std::string OrDisabled(const std::string& text) { return text.empty() ? "disabled" : text; }

void SayStarted(const DaemonConfig& config, Daemon& daemon) {
  const std::string name = daemon.store().NodeName();
  const size_t colon = name.rfind(':');
  const std::vector<SegmentInfo> segments = daemon.store().ListSegments(false);
  Say(
      fmt::format("started stable_id={} epoch={} initial_state={} segment={} lease_ttl_ms={} "
                  "heartbeat_interval_ms={} request_timeout_ms={} startup_timeout_ms={} "
                  "heartbeat_timeout_ms={} transfer_stall_timeout_ms={} metrics_addr={} "
                  "client_server_address={} worker_scope={} socket={} endpoint={}",
                  name.substr(0, colon), name.substr(colon + 1), config.store.initial_state,
                  segments.empty() ? "none" : segments[0].segment_name, config.store.lease_ttl_ms,
                  config.store.heartbeat_interval_ms, config.store.request_timeout_ms,
                  config.store.startup_timeout_ms, config.store.heartbeat_timeout_ms,
                  config.store.transfer_stall_timeout_ms, OrDisabled(MetricsServerAddress()),
                  OrDisabled(daemon.client_address()),
                  config.store.worker_scope.empty() ? "worker-1" : config.store.worker_scope,
                  OrDisabled(daemon.socket_path()), daemon.store().Hostname()));
}

bool IsActive(client::LocalStore& store, const NodeId& id) {
  const auto view = store.parts().node->core().view();
  const auto node = view->Find(id);
  return node != routing::kNoNode && view->node(node).lease.state == NodeState::kActive;
}

// Hands over to a standby of the same name, or empties the node. The exit code.
int Drain(const DaemonConfig& config, client::LocalStore& store, uint64_t deadline_ms) {
  const std::string name = store.NodeName();
  const std::string id = name.substr(0, name.rfind(':'));
  const auto plan = store.PlanHandoff(std::nullopt, config.drain_timeout_ms);
  if (plan.ok()) {
    Say(fmt::format("handoff stable_id={} from_epoch={} to_runtime={}:{} deadline_ms={}", id,
                    plan->from_epoch, id, plan->to_epoch, plan->deadline_ms));
  }
  const Result<uint64_t> moved = store.EvacuateUntil(deadline_ms);
  if (!moved.ok()) {
    Say(fmt::format("drain incomplete stable_id={} error={}", id, moved.error().context));
    return kDrainIncomplete;
  }
  if (plan.ok() && IsActive(store, {id, plan->to_epoch})) {
    Say(fmt::format("upgraded stable_id={} from_epoch={} to_epoch={} migrated_routes={}", id,
                    plan->from_epoch, plan->to_epoch, *moved));
  } else {
    Say(fmt::format("drained stable_id={} evacuated_routes={}", id, *moved));
  }
  return 0;
}

// Stops while it watches for a second signal and for the limits.
int StopWatched(const DaemonConfig& config, Daemon& daemon, Runtime& runtime) {
  std::atomic<bool> stopped{false};
  std::atomic<int> code{0};
  const uint64_t drain_ms = config.drain_on_exit ? config.drain_timeout_ms : 0;
  const uint64_t drained_ms = runtime.NowMs() + drain_ms;
  const auto stopper = runtime.Spawn("mc-stop", [&] {
    daemon.StopServing();
    if (config.drain_on_exit) code.store(Drain(config, daemon.store(), drained_ms));
    daemon.Stop();
    StopMetricsServer();
    StopTracing();  // Sends what is left, to a collector that may be silent.
    stopped.store(true);
  });
  const uint64_t limit_ms = drained_ms + kStopLimitMs;
  bool draining = config.drain_on_exit;
  while (!stopped.load()) {
    if (draining && runtime.NowMs() >= drained_ms) {
      draining = false;
      daemon.store().Close();  // Ends what Drain still does; it says what remains.
    }
    if (const auto signal = WaitForSignal(kLookMs / 4)) _exit(128 + *signal);
    if (runtime.NowMs() < limit_ms) continue;
    Say("did not stop in time; ending anyway");
    _exit(config.drain_on_exit ? kDrainIncomplete : kFailed);
  }
  return code.load();
}

// Says when a standby has been told to take over.
class Promotion {
 public:
  Promotion(const DaemonConfig& config, Daemon& daemon)
      : daemon_(daemon), waiting_(config.store.initial_state == "standby") {}
  void Look() {
    const node::Core& core = daemon_.store().parts().node->core();
    if (!waiting_ || core.membership.record().state != NodeState::kActive) return;
    waiting_ = false;
    const NodeId id = core.membership.record().id;
    Say(fmt::format("promoted stable_id={} epoch={} from_epoch={} kind=HotUpgrade", id.stable_id,
                    id.epoch, id.epoch > 0 ? id.epoch - 1 : 0));
  }

 private:
  Daemon& daemon_;
  bool waiting_;
};

int Run(const DaemonConfig& config) {
  const std::optional<obs::LogLevel> level = LevelOf(config.log_level);
  if (!level) {
    Say(fmt::format("failed: --trace-filter \"{}\"; allowed: debug, info, warning, error, off",
                    config.log_level));
    return kUsage;
  }
  obs::SetLogLevel(*level);
  runtime::RealRuntime runtime;
  auto daemon = Daemon::Start(config);
  if (!daemon) {
    Say(fmt::format("failed: {}", daemon.error().ToString()));
    return kFailed;
  }
  if (!config.store.metrics_addr.empty() && MetricsServerAddress().empty()) {
    Say(fmt::format("failed: --metrics-addr {}: the line above says why it is not served",
                    config.store.metrics_addr));
    return kFailed;
  }
  SayStarted(config, **daemon);
  Promotion promotion(config, **daemon);
  while (!WaitForSignal(kLookMs)) promotion.Look();
  // Not the configured one, which may be empty: then the name was made up.
  const std::string name = (*daemon)->store().NodeName();
  const int code = StopWatched(config, **daemon, runtime);
  if (code == 0) Say(fmt::format("stopped stable_id={}", name.substr(0, name.rfind(':'))));
  return code;
}

int Main(const std::vector<std::string>& arguments) {
  // Before any thread: all of them leave these signals to the main one.
  const sigset_t signals = EndingSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  const Result<CommandLine> command = ParseCommandLine(arguments, ProcessEnvironment());
  if (!command) {
    std::cerr << kProgram << ": " << command.error().context << '\n';
    return kUsage;
  }
  switch (command->action) {
    case Action::kHelp:
      (command->asked_for_help ? std::cout : std::cerr) << command->text;
      return command->asked_for_help ? 0 : kUsage;
    case Action::kVersion:
    case Action::kPrintConfig: std::cout << command->text; return 0;
    case Action::kStats: return RunStats(command->stats);
    case Action::kRun: return Run(command->daemon);
  }
  return kFailed;
}

}  // namespace

}  // namespace mooncake::daemon

int main(int argc, char** argv) { return mooncake::daemon::Main({argv + 1, argv + argc}); }

// mooncake-store-rs-bench: measures a store, or checks every byte of it.
//
// Exit codes: 0 done, 1 failed (verify: a wrong byte, or nothing could be checked), 2 usage,
// 128 + signal when interrupted.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>

#include "bench/cluster.h"
#include "bench/options.h"
#include "bench/report.h"
#include "bench/verify.h"
#include "bench/workload.h"
#include "runtime/real_runtime.h"

namespace mooncake::bench {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr uint64_t kLimitBudgetMs = 80;
constexpr uint64_t kRoundTripBytes = 64;

// The second signal ends the process the usual way.
void OnSignal(int signal) {
  stop_signal = signal;
  std::signal(signal, SIG_DFL);
}

int Report(const std::string& text, bool good) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
  if (stop_signal != 0) return 128 + stop_signal;
  return good ? 0 : kFailed;
}

int Fail(const Error& error) {
  fmt::print(stderr, "mooncake-store-rs-bench: {}\n", error.ToString());
  return kFailed;
}

Result<Limits> MeasureLimits(Runtime& runtime, Cluster& cluster, const Options& options) {
  Limits limits;
  const uint16_t port = cluster.raw_port();
  const LimitRequest trip = {kRoundTripBytes, options.concurrency, kLimitBudgetMs};
  const LimitRequest reads = {options.value_bytes * options.ReadBatch(), options.concurrency,
                              kLimitBudgetMs};
  const LimitRequest writes = {options.value_bytes * options.WriteBatch(), options.concurrency,
                               kLimitBudgetMs};
  MC_TRY(limits.tcp_round_trip, MeasureTcp(runtime, port, RawKind::kGet, trip));
  if (options.Reads()) {
    MC_TRY(limits.tcp_get, MeasureTcp(runtime, port, RawKind::kGet, reads));
  }
  if (options.Writes()) {
    MC_TRY(limits.tcp_put, MeasureTcp(runtime, port, RawKind::kPut, writes));
  }
  MC_TRY(limits.copy, MeasureMemcpy(runtime, options.Reads() ? reads : writes));
  return limits;
}

int Bench(Options options) {
  runtime::RealRuntime runtime;
  const uint64_t run = runtime.Random();
  auto cluster = Cluster::Start(options, SegmentBytesFor(options.keys, options.value_bytes));
  if (!cluster) return Fail(cluster.error());
  const auto keys = Preload(runtime, **cluster, options, run);
  if (!keys) return Fail(keys.error());
  options.keys = *keys;
  // Half of the limits before the run and half after, so that all see the same machine.
  auto limits = MeasureLimits(runtime, **cluster, options);
  if (!limits) return Fail(limits.error());
  const auto outcome = RunWorkload(runtime, **cluster, options, run);
  if (!outcome) return Fail(outcome.error());
  const auto after = MeasureLimits(runtime, **cluster, options);
  if (!after) return Fail(after.error());
  limits->Merge(*after);
  return Report(BenchReport(options, *outcome, *limits), outcome->errors < outcome->items);
}

int Verify(const Options& options) {
  runtime::RealRuntime runtime;
  auto cluster = Cluster::Start(options, SegmentBytesFor(options.keys, options.value_bytes));
  if (!cluster) return Fail(cluster.error());
  const auto verified = RunVerify(runtime, **cluster, options, runtime.Random());
  if (!verified) return Fail(verified.error());
  return Report(VerifyReport(options, *verified), verified->wrong == 0 && verified->verified > 0);
}

int Main(int argc, char** argv) {
  CLI::App app("Measures a Mooncake store, or checks every byte of it", "mooncake-store-rs-bench");
  app.require_subcommand(1);
  app.set_version_flag("-V,--version", "mooncake-store-rs-bench " MOONCAKE_VERSION);
  app.footer("Every option is also read from MC_BENCH_<NAME>.");
  Options bench_options, verify_options;
  ServeOptions serve_options;
  const CLI::App* bench = AddBench(app, bench_options);
  const CLI::App* verify = AddVerify(app, verify_options);
  const CLI::App* serve = AddServe(app, serve_options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  // A terminal's Ctrl-C reaches the storage processes too; they end with their standard input.
  if (serve->parsed()) {
    std::signal(SIGINT, SIG_IGN);
    return Serve(serve_options);
  }
  std::signal(SIGINT, OnSignal);
  std::signal(SIGTERM, OnSignal);
  return bench->parsed() && !verify->parsed() ? Bench(bench_options) : Verify(verify_options);
}

}  // namespace
}  // namespace mooncake::bench

int main(int argc, char** argv) { return mooncake::bench::Main(argc, argv); }

#include "bench/options.h"

#include <algorithm>
#include <cctype>

#include "mooncake/config.h"

namespace mooncake::bench {
namespace {

constexpr uint32_t kThreadsMax = 1024;
constexpr uint32_t kClientsMax = 64;
constexpr uint32_t kBatchMax = 8192;
constexpr uint64_t kKeysMax = 10'000'000;
constexpr double kDurationMax = 7 * 24 * 3600;

// "--value-size" and, in the environment, MC_BENCH_VALUE_SIZE.
template <typename T>
CLI::Option* Add(CLI::App& app, const std::string& flag, T& value, const std::string& help) {
  std::string variable = "MC_BENCH_" + flag.substr(2);
  for (char& c : variable) c = c == '-' ? '_' : static_cast<char>(std::toupper(c));
  return app.add_option(flag, value, help)->envname(variable)->capture_default_str();
}

void AddSize(CLI::App& app, const std::string& flag, uint64_t& value, const std::string& help) {
  const auto parse = [flag](std::string& text) -> std::string {
    const Result<uint64_t> size = ParseSize(flag, text);
    if (!size) return size.error().context;
    text = std::to_string(*size);
    return {};
  };
  Add(app, flag, value, help)->transform(CLI::Validator(parse, "SIZE"));
}

void AddOutput(CLI::App& app, Output& output) {
  const auto set = [&output](const std::string& name) {
    output = name == "json" ? Output::kJson : name == "csv" ? Output::kCsv : Output::kText;
  };
  app.add_option_function<std::string>("--output", set, "how the figures are printed")
      ->envname("MC_BENCH_OUTPUT")
      ->default_str("text")
      ->check(CLI::IsMember({"text", "json", "csv"}));
}

void AddCluster(CLI::App& app, Options& options) {
  Add(app, "--layout", options.layout, "storage in this process, or behind loopback TCP")
      ->check(CLI::IsMember({"local", "remote"}));
  Add(app, "--metadata-url", options.metadata_url,
      "join this cluster; without it a temporary SQLite file is used");
  app.add_option("--cluster-secret", options.cluster_secret, "what the nodes prove to know")
      ->envname("MC_STORE_RS_CLUSTER_SECRET");
  Add(app, "--storage-processes", options.storage_processes,
      "storage processes to start for the layout remote; 0: the cluster has its own")
      ->check(CLI::Range(0u, 16u));
  AddSize(app, "--segment-size", options.segment_bytes,
          "storage of each process; 0: as much as the keys need, at most 1 GiB");
  Add(app, "--writers", options.writers, "clients that write")->check(CLI::Range(1u, kClientsMax));
  Add(app, "--readers", options.readers, "clients that read")->check(CLI::Range(1u, kClientsMax));
  Add(app, "--concurrency", options.concurrency, "threads, spread over the clients")
      ->check(CLI::Range(1u, kThreadsMax));
  Add(app, "--pin", options.pin,
      "split: clients and storage processes on half of the processors each; auto: with one thread")
      ->check(CLI::IsMember({"auto", "split", "none"}));
  AddSize(app, "--value-size", options.value_bytes, "bytes of a value");
  Add(app, "--duration", options.duration_s, "seconds to run; 0: see the other options")
      ->check(CLI::Range(0.0, kDurationMax));
  AddOutput(app, options.output);
}

}  // namespace

CLI::App* AddBench(CLI::App& app, Options& options) {
  CLI::App* bench =
      app.add_subcommand("bench", "Measures calls, next to the limits of the machine");
  AddCluster(*bench, options);
  Add(*bench, "--mode", options.mode, "what to call")
      ->check(CLI::IsMember({"put", "get", "mixed"}));
  Add(*bench, "--write-interface", options.write_interface, "how values are written")
      ->check(CLI::IsMember({"put", "put_from", "batch_put", "batch_put_from"}));
  Add(*bench, "--read-interface", options.read_interface, "how values are read")
      ->check(CLI::IsMember(
          {"get", "get_into", "batch_get", "batch_get_into", "is_exist", "batch_is_exist"}));
  Add(*bench, "--batch-size", options.batch_size, "keys of one call of a batch_ interface")
      ->check(CLI::Range(1u, kBatchMax));
  Add(*bench, "--iterations", options.iterations, "calls of all threads together")
      ->check(CLI::Range(uint64_t{1}, UINT64_MAX));
  Add(*bench, "--warmup", options.warmup, "calls of each thread before it is measured");
  Add(*bench, "--read-ratio", options.read_percent, "percent of reads in the mode mixed")
      ->check(CLI::Range(0u, 100u));
  Add(*bench, "--key-space-size", options.keys, "different keys; fewer where they do not fit")
      ->check(CLI::Range(uint64_t{1}, kKeysMax));
  return bench;
}

CLI::App* AddVerify(CLI::App& app, Options& options) {
  CLI::App* verify = app.add_subcommand(
      "verify", "Writes, overwrites and removes keys, and compares every byte that is read");
  options.keys = 1000;
  options.value_bytes = 64 << 10;
  AddCluster(*verify, options);
  Add(*verify, "--keys", options.keys, "different keys")->check(CLI::Range(uint64_t{1}, kKeysMax));
  return verify;
}

CLI::App* AddServe(CLI::App& app, ServeOptions& options) {
  CLI::App* serve = app.add_subcommand("serve", "A storage process of another bench");
  serve->group("");  // Not in the help: bench starts it itself.
  serve->add_option("--metadata-url", options.metadata_url)->envname(kServeUrl)->required();
  serve->add_option("--cluster-secret", options.cluster_secret)->envname(kServeSecret);
  serve->add_option("--segment-bytes", options.segment_bytes);
  return serve;
}

}  // namespace mooncake::bench

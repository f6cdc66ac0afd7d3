// What the programs `bench` and `verify` can be told, and the command line that tells them. Every
// option can also be given as MC_BENCH_<NAME>.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace mooncake::bench {

inline constexpr double kPerGiB = 1 << 30;

enum class Output : uint8_t { kText, kJson, kCsv };

struct Options {
  // The cluster.
  std::string layout = "remote";  // local: storage in this process; remote: in child processes.
  std::string metadata_url;       // Empty: a temporary SQLite file of our own.
  std::string cluster_secret;
  uint32_t storage_processes = 1;  // remote; 0: the cluster at metadata_url has storage.
  uint64_t segment_bytes = 0;      // 0: what the keys need.
  uint32_t writers = 1;            // Clients; threads are spread over them.
  uint32_t readers = 1;
  std::string pin = "auto";  // split: clients and storage on processors of their own; none.

  // The work.
  std::string mode = "mixed";  // put | get | mixed.
  std::string write_interface = "put_from";
  std::string read_interface = "get_into";
  uint32_t concurrency = 4;
  uint64_t value_bytes = 4096;
  uint32_t batch_size = 8;
  uint64_t iterations = 1024;  // Calls, of all threads together.
  double duration_s = 0;       // Above 0: so long, whatever `iterations` says.
  uint64_t warmup = 32;        // Calls of each thread that are not counted.
  uint32_t read_percent = 70;  // mixed.
  uint64_t keys = 10'000;

  Output output = Output::kText;

  bool Writes() const { return mode != "get"; }
  bool Reads() const { return mode != "put"; }
  // One call at a time measures latency, where it matters which processors take part.
  bool Splits() const { return pin == "split" || (pin == "auto" && concurrency == 1); }
  uint32_t WriteBatch() const { return write_interface.starts_with("batch_") ? batch_size : 1; }
  uint32_t ReadBatch() const { return read_interface.starts_with("batch_") ? batch_size : 1; }
};

// What a storage process is started with, and the variables that carry it.
inline constexpr char kServeUrl[] = "MC_BENCH_SERVE_METADATA_URL";
inline constexpr char kServeSecret[] = "MC_BENCH_SERVE_SECRET";
struct ServeOptions {
  std::string metadata_url;
  std::string cluster_secret;
  uint64_t segment_bytes = 0;
};

// The subcommands; each fills its options when the line is parsed.
CLI::App* AddBench(CLI::App& app, Options& options);
CLI::App* AddVerify(CLI::App& app, Options& options);
CLI::App* AddServe(CLI::App& app, ServeOptions& options);

}  // namespace mooncake::bench

// mooncake-store-rs-bench as its users run it: what it prints, and what it exits with.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

struct Ended {
  int code = -1;
  std::string text;
};

Ended RunTool(const std::string& arguments, const std::string& environment = "") {
  const std::string command = environment + " " BENCH_TOOL " " + arguments + " 2>/dev/null";
  FILE* pipe = ::popen(command.c_str(), "r");
  Ended run;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe))
    run.text.append(buffer, got);
  const int status = ::pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

nlohmann::json RunJson(const std::string& arguments) {
  const Ended run = RunTool(arguments + " --output json");
  EXPECT_EQ(run.code, 0) << arguments << "\n" << run.text;
  return nlohmann::json::parse(run.text, nullptr, false);
}

const char kShort[] = " --iterations 40 --warmup 2 --key-space-size 100 --concurrency 2";

TEST(BenchTool, ReportsEveryNumberOfTheContract) {
  for (const std::string layout : {"local", "remote"}) {
    const nlohmann::json json = RunJson("bench --layout " + layout + kShort);
    for (const char* name : {"ops", "errors", "bytes", "seconds", "ops_per_s", "gib_per_s",
                             "p50_us", "p90_us", "p99_us", "p999_us"}) {
      EXPECT_TRUE(json[name].is_number()) << layout << " " << name;
    }
    EXPECT_EQ(json["mode"], "mixed");
    EXPECT_EQ(json["ops"], 40);
    EXPECT_EQ(json["errors"], 0);
    EXPECT_EQ(json["bytes"], 40 * 4096);
    EXPECT_LE(json["p50_us"], json["p99_us"]);
    for (const char* name : {"tcp_round_trip_us", "tcp_get_us", "tcp_put_us", "memcpy_us"}) {
      EXPECT_GT(json["limits"][name].get<double>(), 0) << layout << " " << name;
    }
    EXPECT_GT(json["limits"]["p50_per_raw"].get<double>(), 0);
  }
}

TEST(BenchTool, SaysItsVersion) {
  for (const std::string flag : {"--version", "-V"}) {
    const Ended run = RunTool(flag);
    EXPECT_EQ(run.code, 0);
    EXPECT_EQ(run.text, "mooncake-store-rs-bench " MOONCAKE_VERSION "\n");
  }
}

TEST(BenchTool, MeasuresEveryInterface) {
  for (const std::string name : {"put", "put_from", "batch_put", "batch_put_from"}) {
    const auto json = RunJson("bench --layout local --mode put --write-interface " + name + kShort);
    const int batch = name.starts_with("batch_") ? 8 : 1;
    EXPECT_EQ(json["items"], 40 * batch) << name;
    EXPECT_EQ(json["errors"], 0) << name;
    EXPECT_EQ(json["bytes"], 40 * batch * 4096) << name;
  }
  for (const std::string name :
       {"get", "get_into", "batch_get", "batch_get_into", "is_exist", "batch_is_exist"}) {
    const auto json = RunJson("bench --layout local --mode get --read-interface " + name + kShort);
    EXPECT_EQ(json["errors"], 0) << name;
  }
}

TEST(BenchTool, TakesSizesDurationsAndTheEnvironment) {
  const Ended run = RunTool("bench --layout local --value-size 64K --duration 0.2 --output json",
                            "MC_BENCH_MODE=get MC_BENCH_KEY_SPACE_SIZE=50");
  ASSERT_EQ(run.code, 0);
  const auto json = nlohmann::json::parse(run.text);
  EXPECT_EQ(json["mode"], "get");
  EXPECT_EQ(json["key_space_size"], 50);
  EXPECT_EQ(json["value_size"], 65536);
  EXPECT_GE(json["seconds"], 0.2);
}

TEST(BenchTool, WritesOneCsvHeaderAndOneRow) {
  const Ended run = RunTool(std::string("bench --layout local --output csv") + kShort);
  EXPECT_EQ(run.code, 0);
  ASSERT_EQ(std::count(run.text.begin(), run.text.end(), '\n'), 2);
  const size_t line = run.text.find('\n');
  EXPECT_EQ(std::count(run.text.begin(), run.text.begin() + static_cast<long>(line), ','),
            std::count(run.text.begin() + static_cast<long>(line), run.text.end(), ','));
  EXPECT_NE(run.text.find("limits.p50_per_raw"), std::string::npos);
}

TEST(BenchTool, VerifiesEveryByte) {
  for (const std::string layout : {"local", "remote"}) {
    const auto json = RunJson("verify --keys 100 --value-size 20000 --layout " + layout);
    EXPECT_EQ(json["mode"], "verify");
    EXPECT_EQ(json["wrong"], 0);
    EXPECT_EQ(json["errors"], 0);
    EXPECT_EQ(json["misses"], 0);
    EXPECT_GE(json["verified"], 400);
    EXPECT_GT(json["bytes"], 0);
  }
}

TEST(BenchTool, ExitsWithTwoForWrongUsageAndOneForFailure) {
  EXPECT_EQ(RunTool("").code, 2);
  EXPECT_EQ(RunTool("bench --mode sideways").code, 2);
  EXPECT_EQ(RunTool("bench --value-size many").code, 2);
  EXPECT_EQ(RunTool("bench --no-such-flag").code, 2);
  EXPECT_EQ(RunTool("--help").code, 0);
  EXPECT_EQ(RunTool("bench --metadata-url nothing://here").code, 1);
}

}  // namespace

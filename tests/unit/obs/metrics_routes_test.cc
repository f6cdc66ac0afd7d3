// The pages of the metrics server, and who may turn tracing on.
#include "obs/metrics_routes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "obs/prometheus_metrics.h"
#include "runtime/real_runtime.h"
#include "support/scripted_http.h"

namespace mooncake::obs {
namespace {

using ::mooncake::testing::ScriptedHttp;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsRoutesTest : public ::testing::Test {
 protected:
  MetricsRoutesTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) /
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }

  HttpResponse Get(const std::string& path, std::map<std::string, std::string> query = {},
                   bool from_loopback = true, std::map<std::string, std::string> headers = {}) {
    MetricsRoutes routes(hub_, tracer_, options_);
    return routes.Answer({path, std::move(query), std::move(headers), from_loopback});
  }
  json GetJson(const std::string& path, std::map<std::string, std::string> query = {}) {
    const HttpResponse response = Get(path, std::move(query));
    EXPECT_EQ(response.status, 200) << response.body;
    return json::parse(response.body);
  }
  std::string File(const std::string& name) { return (folder_ / name).string(); }
  static std::vector<json> Lines(const std::string& path) {
    std::vector<json> lines;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
    return lines;
  }

  MetricsHub hub_;
  Tracer tracer_;
  RoutesOptions options_;
  std::filesystem::path folder_;
};

TEST_F(MetricsRoutesTest, KnowsItsPaths) {
  EXPECT_EQ(Get("/healthz").body, "ok\n");
  EXPECT_EQ(Get("/livez").body, "ok\n");
  EXPECT_THAT(Get("/metrics").body, HasSubstr("process_open_fds{tenant=\"default\"}"));
  for (const char* unknown : {"/", "/metrics/", "/tracing/up", "/tracingx", "/trac"}) {
    EXPECT_EQ(Get(unknown).status, 404) << unknown;
  }
}

TEST_F(MetricsRoutesTest, SumsTheStoresOfTheProcess) {
  PrometheusMetrics one("t");
  PrometheusMetrics two("t");
  one.GetCounter("operation_total", {{"operation", "put"}, {"result", "ok"}}).Add(2);
  two.GetCounter("operation_total", {{"operation", "put"}, {"result", "ok"}}).Add(3);
  two.GetGauge("open", {}).Set(7);
  MetricsHub::Source first(hub_, "t", [&] { return one.Export(); });
  {
    MetricsHub::Source second(hub_, "t", [&] { return two.Export(); });
    EXPECT_THAT(Get("/metrics").body,
                HasSubstr("operation_total{operation=\"put\",result=\"ok\",tenant=\"t\"} 5\n"));
    EXPECT_THAT(Get("/metrics").body, HasSubstr("mooncake_store_open{tenant=\"t\"} 7\n"));
  }
  // A store that was closed stays in the sums; what it looked like does not.
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("operation_total{operation=\"put\",result=\"ok\",tenant=\"t\"} 5\n"));
  EXPECT_THAT(Get("/metrics").body, ::testing::Not(HasSubstr("mooncake_store_open")));
}

TEST_F(MetricsRoutesTest, PagesHaveTheirShape) {
  PrometheusMetrics metrics("blue");
  const Labels put{{"operation", "put"}, {"result", "ok"}};
  metrics.GetCounter("operation_total", put).Add(4);
  metrics.GetCounter("operation_total", {{"operation", "get"}, {"result", "miss"}});
  metrics.GetCounter("operation_bytes_in_total", put).Add(400);
  Labels timed = put;
  timed["scope"] = "foreground";
  for (uint64_t ms : {1, 2, 3, 2'000}) {
    metrics.GetHistogram("request_duration_seconds", timed).ObserveNs(ms * 1'000'000);
  }
  metrics.GetCounter("soft_failure_total", {{"operation", "get"}, {"reason", "absent"}}).Add(2);
  metrics.GetGauge("runtime_status", {{"runtime", "n:1"}, {"state", "active"}}).Set(1);
  metrics.GetGauge("runtime_lease_age_ms", {{"runtime", "n:1"}}).Set(12);
  MetricsHub::Source source(hub_, "blue", [&] { return metrics.Export(); });

  const json stats = GetJson("/stats");
  EXPECT_EQ(stats["schema_version"], 1);
  ASSERT_EQ(stats["operations"].size(), 1u);
  EXPECT_EQ(stats["operations"][0]["result"], "ok");
  EXPECT_EQ(stats["operations"][0]["calls_total"], 4);
  EXPECT_EQ(stats["runtimes"][0]["state"], "active");

  const json breakdown = GetJson("/breakdown");
  EXPECT_EQ(breakdown["tenant"], "blue");
  const json& row = breakdown["operations"][0];
  EXPECT_EQ(row["kind"], "api");
  EXPECT_EQ(row["bytes_in_total"], 400);
  EXPECT_EQ(row["latency_total_us"], 2'006'000);
  EXPECT_EQ(row["latency_max_us"], 2'000'000);
  EXPECT_GT(row["latency_p99_us"], 1'800'000);  // Above a second too.
  EXPECT_EQ(breakdown["soft_failures"][0]["reason"], "absent");
  EXPECT_EQ(breakdown["bottlenecks"][0]["name"], "put");
  EXPECT_EQ(breakdown["runtimes"][0]["lease_age_ms"], 12);
}

TEST_F(MetricsRoutesTest, TracingIsTurnedOnAndOff) {
  EXPECT_EQ(GetJson("/tracing")["enabled"], false);
  EXPECT_EQ(Get("/tracing/on").status, 400);  // There is no file.
  const json on = GetJson("/tracing", {{"enabled", "on"},
                                       {"file", File("a/b/trace.jsonl")},
                                       {"sample_ratio", "0.5"},
                                       {"service_name", "s"}});
  EXPECT_EQ(on["enabled"], true);
  EXPECT_EQ(on["file"], File("a/b/trace.jsonl"));
  EXPECT_EQ(on["sample_ratio"], 0.5);
  EXPECT_EQ(on["service_name"], "s");
  EXPECT_EQ(GetJson("/trace/off")["enabled"], false);
  EXPECT_EQ(GetJson("/tracing/flush")["enabled"], false);
  EXPECT_EQ(GetJson("/tracing", {{"clear_file", "true"}})["file"], nullptr);
}

TEST_F(MetricsRoutesTest, RefusesWrongQueries) {
  const std::vector<std::pair<std::string, std::string>> wrong{
      {"enabled", "maybe"}, {"sample_ratio", "1.5"},  {"sample_ratio", "nan"},
      {"file", ""},         {"endpoint", "http://x"}, {"no_such", "1"}};
  for (const auto& [name, value] : wrong) {
    EXPECT_EQ(Get("/tracing", {{name, value}}).status, 400) << name << value;
  }
}

TEST_F(MetricsRoutesTest, FilesAreNamedFromThisHostOrWithTheToken) {
  const std::map<std::string, std::string> query{{"file", File("trace.jsonl")}};
  EXPECT_EQ(Get("/tracing", query, false).status, 403);
  EXPECT_EQ(Get("/tracing", query, false, {{"authorization", "Bearer "}}).status, 403);
  EXPECT_EQ(Get("/tracing", query, true, {{"x-forwarded-for", "10.0.0.1"}}).status, 403);
  EXPECT_EQ(Get("/tracing", query, true, {{"origin", "http://evil"}}).status, 403);
  EXPECT_EQ(Get("/tracing", query, true, {{"host", "evil.example:80"}}).status, 403);
  EXPECT_FALSE(std::filesystem::exists(File("trace.jsonl")));
  options_.admin_token = "secret";
  EXPECT_EQ(Get("/tracing", query, false, {{"authorization", "Bearer secrex"}}).status, 403);
  EXPECT_EQ(Get("/tracing", query, false, {{"authorization", "Bearer secret"}}).status, 200);
  EXPECT_EQ(Get("/tracing", query, true, {{"host", "127.0.0.1:80"}}).status, 200);
}

TEST_F(MetricsRoutesTest, FlushesAreForThisHostOrForTheToken) {
  EXPECT_EQ(Get("/tracing/flush", {}, false).status, 403);
  EXPECT_EQ(Get("/trace/flush", {}, true, {{"forwarded", "for=10.0.0.1"}}).status, 403);
  EXPECT_EQ(Get("/tracing/flush").status, 200);
  options_.admin_token = "secret";
  EXPECT_EQ(Get("/tracing/flush", {}, false, {{"authorization", "Bearer secret"}}).status, 200);
}

TEST_F(MetricsRoutesTest, ConfiguredHeadersGoToTheConfiguredCollectorOnly) {
  runtime::RealRuntime runtime;
  for (const bool configured : {true, false}) {
    std::atomic<bool> told = false;
    std::atomic<bool> asked = false;
    ScriptedHttp collector([&](const std::string& request, ScriptedHttp::Peer& peer) {
      told = request.find("X-Token: secret") != std::string::npos;
      asked = true;
      peer.Send(ScriptedHttp::Answer(200, ""));
    });
    const std::string endpoint = "http://" + collector.Address() + "/v1/traces";
    options_.runtime = &runtime;
    options_.otlp = {.endpoint = configured ? endpoint : "http://127.0.0.1:1/v1/traces",
                     .headers = {{"X-Token", "secret"}}};
    Tracer tracer;
    MetricsRoutes routes(hub_, tracer, options_);
    EXPECT_EQ(routes.Answer({"/tracing", {{"endpoint", endpoint}}, {}, true}).status, 200);
    tracer.Write({.name = "store.get", .request = 1});
    tracer.Flush();
    EXPECT_TRUE(asked);
    EXPECT_EQ(told, configured);
  }
}

TEST_F(MetricsRoutesTest, FilesStayUnderTheFolder) {
  options_.trace_dir = File("in");
  std::filesystem::create_directories(File("in"));
  std::filesystem::create_directory_symlink(folder_, File("in/out"));
  for (const char* outside : {"x.jsonl", "in/../x.jsonl", "in/out/x.jsonl", "inner/x.jsonl"}) {
    EXPECT_EQ(Get("/tracing", {{"file", File(outside)}}).status, 400) << outside;
  }
  EXPECT_FALSE(std::filesystem::exists(File("x.jsonl")));
  EXPECT_EQ(Get("/tracing", {{"file", File("in/sub/x.jsonl")}}).status, 200);
}

TEST_F(MetricsRoutesTest, TraceHasALineForEachCallInTheSample) {
  ASSERT_TRUE(tracer_.OpenFile(File("t.jsonl"), {}).ok());
  ASSERT_TRUE(tracer_.Enable(true).ok());
  tracer_.Write({.name = "store.get",
                 .operation = "get",
                 .flow = "get",
                 .result = "miss",
                 .tenant = "t",
                 .request = tracer_.Begin(),
                 .start_unix_ns = 5'000'000,
                 .duration_ns = 7'000});
  const std::vector<TracedItem> items{{"model_layer_3_1_k", 10, 8, 0}, {"plain key", 10, -1, -1}};
  tracer_.SetItems(true, false);
  tracer_.WriteItems(tracer_.Begin(), {.operation = "batch_get_into", .items = items});
  ASSERT_TRUE(tracer_.SetSampleRatio(0).ok());
  EXPECT_EQ(tracer_.Begin(), 0u);

  const std::vector<json> lines = Lines(File("t.jsonl"));
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["span_name"], "store.get");
  EXPECT_EQ(lines[0]["result"], "miss");
  EXPECT_EQ(lines[0]["attributes"]["mooncake.operation"], "get");
  EXPECT_EQ(lines[1]["record_type"], "store.api_items.v1");
  const json& item = lines[1]["items"][0];
  EXPECT_THAT(item["key_hash"].get<std::string>(), StartsWith("sha256:"));
  EXPECT_EQ(item["key_hash"].get<std::string>().size(), 7u + 32u);
  EXPECT_EQ(item["key_prefix"], "model_layer_3_1_");
  EXPECT_EQ(item["key"], nullptr);
  EXPECT_EQ(item["tp_rank"], 1);
  EXPECT_EQ(item["kv_kind"], "k");
  EXPECT_EQ(lines[1]["items"][1]["tp_rank"], nullptr);
  EXPECT_EQ(lines[1]["items"][1]["read_len"], nullptr);
}

}  // namespace
}  // namespace mooncake::obs

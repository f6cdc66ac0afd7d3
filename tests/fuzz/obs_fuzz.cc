// Requests to the metrics server, keys in traces, and what the kernel says about limits.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "fuzz/fuzz.h"
#include "obs/http_request.h"
#include "obs/metrics_routes.h"
#include "obs/otlp_exporter.h"
#include "obs/trace_keys.h"
#include "runtime/memory_limit.h"
#include "runtime/real_runtime.h"

namespace mooncake::fuzz {
namespace {

bool HasControls(const std::string& text) {
  return std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; });
}

TEST(ObsFuzz, ARequestIsReadWithoutControlsOrRefused) {
  const std::string end = " HTTP/1.1\r\nHost: h:1\r\n\r\n";
  RunTarget({.samples = {"GET /metrics" + end,
                         "GET /tracing?enabled=on&sample_ratio=0.5&service_name=a%20b+c" + end,
                         "GET /tracing?file=%2ftmp HTTP/1.0\nOrigin: http://x\nA:\tb \n\n",
                         "POST / HTTP/2.0\r\n\r\n"},
             .check =
                 [](const std::string& input) {
                   obs::HttpRequest request;
                   const int refused = obs::ParseHttpRequest(input, &request);
                   MC_FUZZ_CHECK(refused == 0 || refused == 400 || refused == 405 ||
                                 refused == 505);
                   if (refused != 0) return kRight;
                   MC_FUZZ_CHECK(request.path.starts_with('/') && !HasControls(request.path));
                   for (const auto& [name, value] : request.query) {
                     MC_FUZZ_CHECK(!HasControls(name) && !HasControls(value));
                   }
                   for (const auto& [name, value] : request.headers) {
                     MC_FUZZ_CHECK(!name.empty() && !HasControls(name));
                     MC_FUZZ_CHECK(value.find_first_of("\r\n") == std::string::npos);
                   }
                   return kRight;
                 },
             // An empty pair of a query costs a piece of text of its own.
             .allocated_per_byte_max = 200});
}

// Nobody from another host, whatever it asks, gets at a file or starts an export.
TEST(ObsFuzz, APageIsAnsweredAndNothingIsOpenedForAStranger) {
  obs::MetricsHub hub;
  obs::Tracer tracer;
  obs::MetricsRoutes routes(hub, tracer, {.admin_token = "token"});
  RunTarget({.samples = {"/tracing?enabled=on&sample_ratio=1&service_name=s",
                         "/tracing?file=%2ftmp%2fx&clear_file=true", "/tracing/on",
                         "/trace?endpoint=http://h:1/v1&sampling_ratio=0.25", "/tracing/flush",
                         "/healthz", "/tracing?jsonl_file=a&enable=yes"},
             .check = [&](const std::string& input) {
               obs::HttpRequest request;
               const std::string head =
                   "GET " + input + " HTTP/1.1\r\nAuthorization: Bearer tokem\r\n\r\n";
               if (obs::ParseHttpRequest(head, &request) != 0) return kRight;
               const obs::HttpResponse response = routes.Answer(request);
               MC_FUZZ_CHECK(response.status == 200 || response.status == 400 ||
                             response.status == 403 || response.status == 404);
               const obs::Tracer::State state = tracer.state();
               MC_FUZZ_CHECK(state.file.empty() && state.endpoint.empty() && !state.enabled);
               MC_FUZZ_CHECK(state.sample_ratio >= 0 && state.sample_ratio <= 1);
               return kRight;
             }});
}

TEST(ObsFuzz, ACollectorsAddressIsTakenOrRefused) {
  runtime::RealRuntime runtime;
  RunTarget({.samples = {"http://127.0.0.1:1/v1/traces", "https://[::1]:1", "http://127.0.0.1:1?a"},
             .check =
                 [&](const std::string& input) {
                   auto exporter =
                       obs::OtlpExporter::Start(runtime, {.endpoint = input, .timeout_ms = 10});
                   if (!exporter) {
                     return WrongError(exporter.error(), ErrorCode::kInvalidArgument, "endpoint");
                   }
                   (*exporter)->Stop(0);
                   return kRight;
                 },
             .cost = 20});
}

TEST(ObsFuzz, PartsOfAKeyAreParts) {
  RunTarget({.samples = {"model_0_17_k", "a_v", "_k", "", "\xe2\x82\xac_1_v"},
             .check = [](const std::string& input) {
               const obs::KeyParts parts = obs::PartsOfKey(input);
               MC_FUZZ_CHECK(parts.kv_kind.empty() || parts.kv_kind == "k" || parts.kv_kind == "v");
               MC_FUZZ_CHECK(input.starts_with(obs::PrefixOfKey(input)));
               MC_FUZZ_CHECK(obs::HashOfKey(input).size() == 39);
               return kRight;
             }});
}

// The files of a process's folder in /proc, with a line "=" between them.
TEST(ObsFuzz, WhatTheKernelSaysAboutLimitsIsReadOrLeftOut) {
  const std::string folder =
      std::filesystem::path(::testing::TempDir()) / ("fuzz-limits-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder + "/group");
  const auto write = [&](const std::string& name, std::string_view text) {
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  };
  RunTarget(
      {.samples = {"0::/group\n=\n30 23 0:26 / " + folder + " rw - cgroup2 cgroup2 rw\n=\n1000\n",
                   "4:memory:/x/group\n=\n33 23 0:29 /x " + folder +
                       " rw - cgroup cgroup rw,memory\n=\nmax\n"},
       .check =
           [&](const std::string& input) {
             const size_t first = std::min(input.find("=\n"), input.size());
             const size_t second = std::min(input.find("=\n", first + 1), input.size());
             write("cgroup", std::string_view(input).substr(0, first));
             write("mountinfo", std::string_view(input).substr(first, second - first));
             for (const char* name : {"memory.max", "memory.current", "memory.limit_in_bytes"}) {
               write(std::string("group/") + name, std::string_view(input).substr(second));
             }
             for (const MemoryLimit& limit : MemoryLimits(folder)) {
               MC_FUZZ_CHECK(limit.file.find("memory.") != std::string::npos);
               const Status ever = CheckMemoryLimits(UINT64_MAX, LimitCheck::kNow, {limit});
               MC_FUZZ_CHECK(ever.code() == ErrorCode::kNoSpace);
             }
             return kRight;
           },
       .cost = 20});
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace mooncake::fuzz

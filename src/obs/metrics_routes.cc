#include "obs/metrics_routes.h"

#include <fmt/format.h>
#include <openssl/crypto.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hostport.h"
#include "base/text.h"
#include "obs/metrics_pages.h"

namespace mooncake::obs {
namespace {

constexpr const char* kJson = "application/json";
constexpr int kBadRequest = 400;
constexpr int kForbidden = 403;
constexpr int kNotFound = 404;

// One of the spellings that a query may use.
const std::string* Find(const HttpRequest& request, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto found = request.query.find(name);
    if (found != request.query.end()) return &found->second;
  }
  return nullptr;
}

std::optional<bool> ParseSwitch(const std::string& text) {
  const std::string word = base::Lower(text);
  if (word == "on" || word == "true" || word == "1" || word == "yes") return true;
  if (word == "off" || word == "false" || word == "0" || word == "no") return false;
  return std::nullopt;
}

std::optional<double> ParseRatio(const std::string& text) {
  double ratio = -1;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  const bool whole = failed == std::errc() && end == text.data() + text.size();
  return whole && ratio >= 0 && ratio <= 1 ? std::optional(ratio) : std::nullopt;
}

Status CheckNames(const HttpRequest& request) {
  constexpr std::string_view kKnown[] = {
      "enabled",      "enable",         "endpoint", "service_name", "service_instance_id",
      "sample_ratio", "sampling_ratio", "file",     "jsonl_file",   "clear_file"};
  for (const auto& [name, value] : request.query) {
    bool known = false;
    for (std::string_view each : kKnown) known = known || each == name;
    if (!known) return InvalidArgument(fmt::format("there is no '{}' to set", name));
  }
  return Ok();
}

// Whether a page of a foreign site made a browser on this machine ask.
bool LooksCrossSite(const HttpRequest& request) {
  const auto header = [&](const char* name) -> std::string {
    const auto found = request.headers.find(name);
    return found == request.headers.end() ? std::string() : base::Lower(found->second);
  };
  const std::string site = header("sec-fetch-site");
  if (!header("origin").empty()) return true;
  if (!site.empty() && site != "none" && site != "same-origin") return true;
  const auto host = base::ParseHostPort("host", header("host"));
  if (header("host").empty()) return false;
  return !host || (host->host != "localhost" &&
                   host->host.find_first_not_of("0123456789abcdef.:") != std::string::npos);
}

}  // namespace

MetricsRoutes::MetricsRoutes(MetricsHub& hub, Tracer& tracer, RoutesOptions options)
    : hub_(hub), tracer_(tracer), options_(std::move(options)) {}

HttpResponse MetricsRoutes::Answer(const HttpRequest& request) {
  const std::string& path = request.path;
  if (path == "/healthz" || path == "/livez") return {.body = "ok\n"};
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = hub_.Text()};
  }
  if (path == "/stats") {
    return {.content_type = kJson,
            .body = StatsPage(hub_.Collect().SamplesOfAllTenants(), ReadProcessUsage())};
  }
  if (path == "/breakdown") {
    return {.content_type = kJson,
            .body = BreakdownPage(hub_.Collect().SamplesOfAllTenants(), ReadProcessUsage(),
                                  hub_.Tenant())};
  }
  if (path.starts_with("/trac")) return Tracing(request);
  return {.status = kNotFound, .body = "not found\n"};
}

bool MetricsRoutes::HasToken(const HttpRequest& request) const {
  const auto found = request.headers.find("authorization");
  if (options_.admin_token.empty() || found == request.headers.end()) return false;
  const std::string expected = "Bearer " + options_.admin_token;
  return found->second.size() == expected.size() &&
         CRYPTO_memcmp(found->second.data(), expected.data(), expected.size()) == 0;
}

Status MetricsRoutes::CheckMayChange(const HttpRequest& request) const {
  if (HasToken(request)) return Ok();
  if (LooksCrossSite(request)) {
    return InvalidState("a page of another site may not change tracing");
  }
  const bool names_file =
      Find(request, {"file", "jsonl_file", "clear_file", "endpoint"}) != nullptr;
  const bool forwarded =
      request.headers.contains("x-forwarded-for") || request.headers.contains("forwarded");
  const bool flushes = request.path.ends_with("/flush");  // Holds up this server.
  if ((names_file || flushes) && (!request.from_loopback || forwarded)) {
    return InvalidState(
        "the file, the endpoint and a flush are for this host, or for the admin token");
  }
  return Ok();
}

Status MetricsRoutes::Apply(const HttpRequest& request) {
  MC_RETURN_IF_ERROR(CheckNames(request));
  const std::string* ratio_text = Find(request, {"sample_ratio", "sampling_ratio"});
  const std::string* enable_text = Find(request, {"enabled", "enable"});
  const std::string* clear_text = Find(request, {"clear_file"});
  const auto ratio = ratio_text != nullptr ? ParseRatio(*ratio_text) : std::nullopt;
  const auto enable = enable_text != nullptr ? ParseSwitch(*enable_text) : std::nullopt;
  // Without a value it is meant.
  const auto clear = clear_text == nullptr ? std::optional(false)
                     : clear_text->empty() ? std::optional(true)
                                           : ParseSwitch(*clear_text);
  if (ratio_text != nullptr && !ratio) {
    return InvalidArgument(fmt::format("sample_ratio '{}': allowed: 0 to 1", *ratio_text));
  }
  if (enable_text != nullptr && !enable) {
    return InvalidArgument(fmt::format("enabled '{}': allowed: on, off", *enable_text));
  }
  if (!clear) return InvalidArgument("clear_file: allowed: true, false");
  if (*clear) tracer_.CloseFile();
  if (const std::string* file = Find(request, {"file", "jsonl_file"})) {
    MC_RETURN_IF_ERROR(tracer_.OpenFile(*file, options_.trace_dir));
  }
  MC_RETURN_IF_ERROR(
      tracer_.SetService(Find(request, {"service_name"}), Find(request, {"service_instance_id"})));
  if (ratio) MC_RETURN_IF_ERROR(tracer_.SetSampleRatio(*ratio));
  if (const std::string* endpoint = Find(request, {"endpoint"})) {
    MC_RETURN_IF_ERROR(StartExport(*endpoint));
  }
  if (enable) MC_RETURN_IF_ERROR(tracer_.Enable(*enable));
  return Ok();
}

Status MetricsRoutes::StartExport(const std::string& endpoint) {
  if (options_.runtime == nullptr) return Unsupported("endpoint: nothing can be exported here");
  OtlpOptions otlp = options_.otlp;
  // The headers hold secrets, which are for the collector that they were configured with.
  if (endpoint != otlp.endpoint) otlp.headers.clear();
  otlp.endpoint = endpoint;
  return tracer_.StartExport(*options_.runtime, std::move(otlp));
}

std::string MetricsRoutes::TracingStatus() const {
  const Tracer::State state = tracer_.state();
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(text);
  };
  const bool configured = !state.file.empty() || !state.endpoint.empty();
  const uint64_t dropped = state.export_counts.queue_full + state.export_counts.refused;
  const nlohmann::ordered_json status{{"enabled", state.enabled},
                                      {"configured", configured},
                                      {"provider_ready", configured},
                                      {"endpoint", or_null(state.endpoint)},
                                      {"file", or_null(state.file)},
                                      {"service_name", state.service_name},
                                      {"service_instance_id", state.service_instance_id},
                                      {"sample_ratio", state.sample_ratio},
                                      {"last_error", or_null(state.last_error)},
                                      {"spans_written", state.written},
                                      {"spans_exported", state.export_counts.exported},
                                      {"spans_dropped", dropped}};
  return status.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

HttpResponse MetricsRoutes::Tracing(const HttpRequest& request) {
  const std::string root = request.path.starts_with("/tracing") ? "/tracing" : "/trace";
  const std::string action = request.path.substr(std::min(root.size(), request.path.size()));
  const bool known = action.empty() || action == "/on" || action == "/off" || action == "/flush";
  if (!known || !request.path.starts_with(root))
    return {.status = kNotFound, .body = "not found\n"};
  Status status = Ok();
  if (!action.empty() || !request.query.empty()) {
    if (status = CheckMayChange(request); !status) {
      return {.status = kForbidden, .body = status.error().context + "\n"};
    }
    status = Apply(request);
    if (status.ok() && (action == "/on" || action == "/off")) {
      status = tracer_.Enable(action == "/on");
    }
    if (action == "/flush") tracer_.Flush();
  }
  if (!status) return {.status = kBadRequest, .body = status.error().context + "\n"};
  return {.content_type = kJson, .body = TracingStatus()};
}

}  // namespace mooncake::obs

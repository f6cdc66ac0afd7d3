#include "client/process_observability.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/hostport.h"
#include "base/mutex.h"
#include "base/text.h"
#include "mooncake/observability.h"
#include "obs/http_server.h"
#include "obs/log.h"
#include "obs/metrics_hub.h"
#include "obs/metrics_routes.h"
#include "obs/per_process.h"
#include "obs/tracer.h"
#include "runtime/real_runtime.h"

namespace mooncake {
namespace {

constexpr const char* kDefaultEndpoint = "http://localhost:4318/v1/traces";
constexpr uint64_t kStopLimitMs = 4'000;

obs::OtlpOptions OtlpOptionsOf(const TraceConfig& trace) {
  obs::OtlpOptions options;
  options.endpoint = trace.otlp_endpoint.empty() ? kDefaultEndpoint : trace.otlp_endpoint;
  options.headers = trace.otlp_headers;
  options.resource = trace.otlp_resource;
  options.timeout_ms = trace.otlp_timeout_ms;
  return options;
}

// What the tracer counts, among the metrics of the process.
obs::MetricSet TraceCounts() {
  const obs::Tracer::State state = obs::Tracer::OfProcess().state();
  obs::MetricSet set;
  const auto add = [&](const char* name, const Labels& labels, uint64_t count) {
    Labels full = labels;
    full["tenant"] = "default";
    set.Add(name, full, MetricSample::Kind::kCounter, {static_cast<double>(count)});
  };
  add("trace_spans_total", {{"sink", "file"}}, state.written);
  add("trace_spans_total", {{"sink", "otlp"}}, state.export_counts.exported);
  add("trace_dropped_total", {{"reason", "queue_full"}}, state.export_counts.queue_full);
  add("trace_dropped_total", {{"reason", "refused"}}, state.export_counts.refused);
  return set;
}

// The server of the process. Never destroyed: it may answer until the process is gone.
class Server {
 public:
  static Server& OfProcess() {
    static constinit obs::PerProcess<Server> server;
    return server.Get();
  }

  Result<std::string> Start(const std::string& bind_addr, const TraceConfig& trace) {
    base::MutexLock lock(mu_);
    if (http_) return Running(bind_addr);
    auto routes = std::make_unique<obs::MetricsRoutes>(obs::MetricsHub::OfProcess(),
                                                       obs::Tracer::OfProcess(), OptionsOf(trace));
    const auto answer = [answers = routes.get()](const obs::HttpRequest& request) {
      return answers->Answer(request);
    };
    MC_TRY(http_, obs::HttpServer::Start(runtime_, bind_addr, answer));
    routes_ = std::move(routes);
    return http_->address();
  }

  void Stop() {
    std::unique_ptr<obs::HttpServer> http;
    std::unique_ptr<obs::MetricsRoutes> routes;
    {
      base::MutexLock lock(mu_);
      routes = std::move(routes_);
      http = std::move(http_);  // Joined without the lock; before the routes go.
    }
    http.reset();
  }

  // Here, as this has the runtime and lives as long as the process.
  Status StartExport(const TraceConfig& trace) {
    obs::Tracer& tracer = obs::Tracer::OfProcess();
    MC_RETURN_IF_ERROR(tracer.SetSampleRatio(trace.otlp_sample_ratio));
    const std::string& instance = trace.otlp_service_instance_id;
    MC_RETURN_IF_ERROR(
        tracer.SetService(&trace.otlp_service_name, instance.empty() ? nullptr : &instance));
    return tracer.StartExport(runtime_, OtlpOptionsOf(trace));
  }

  std::string Address() {
    base::MutexLock lock(mu_);
    return http_ ? http_->address() : std::string();
  }

  // A forked child has no thread that serves, and must not hold the parent's port. Without the
  // lock, which may be held by a thread that does not exist.
  void LeaveToParent() MC_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
    if (http_) http_->CloseInherited();
  }

 private:
  obs::RoutesOptions OptionsOf(const TraceConfig& trace) {
    return {trace.admin_token, trace.dir, OtlpOptionsOf(trace), &runtime_};
  }

  Result<std::string> Running(const std::string& bind_addr) MC_REQUIRES(mu_) {
    MC_TRY(const base::HostPort wanted, base::ParseHostPort("bind_addr", bind_addr));
    MC_TRY(const base::HostPort runs, base::ParseHostPort("address", http_->address()));
    const bool same_host = wanted.host == runs.host ||
                           (wanted.host == "localhost" && runs.host == "127.0.0.1") ||
                           wanted.host.empty();
    const bool same_port = wanted.port && (*wanted.port == 0 || wanted.port == runs.port);
    if (same_host && same_port) return http_->address();
    return Conflict(
        fmt::format("the metrics server of this process runs at {} already; stop it "
                    "before it is started at {}",
                    http_->address(), bind_addr));
  }

  runtime::RealRuntime runtime_;
  base::Mutex mu_;
  std::unique_ptr<obs::MetricsRoutes> routes_ MC_GUARDED_BY(mu_);
  std::unique_ptr<obs::HttpServer> http_ MC_GUARDED_BY(mu_);
  const obs::MetricsHub::Source trace_counts_{obs::MetricsHub::OfProcess(), "", TraceCounts};
};

// Of directives as tracing_subscriber has them ("info,mooncake_store=debug"), the most talkative
// level; info when none is named.
obs::LogLevel LevelOf(const std::string& filter) {
  std::optional<obs::LogLevel> level;
  for (std::string_view directive : base::Split(filter, ',')) {
    const size_t equals = directive.rfind('=');
    const std::string word = base::Lower(
        base::Trim(equals == std::string_view::npos ? directive : directive.substr(equals + 1)));
    if (word.empty()) continue;
    obs::LogLevel named = obs::LogLevel::kDebug;  // Of "trace", "debug" and a target alone.
    if (word == "info") named = obs::LogLevel::kInfo;
    if (word == "warn" || word == "warning") named = obs::LogLevel::kWarning;
    if (word == "error") named = obs::LogLevel::kError;
    if (word == "off") named = obs::LogLevel::kOff;
    if (!level || named < *level) level = named;
  }
  return level.value_or(obs::LogLevel::kInfo);
}

Status NamedBy(std::string_view setting, const Status& status) {
  if (status.ok()) return status;
  return InvalidArgument(fmt::format("{}: {}", setting, status.error().context));
}

Status OpenFiles(const TraceConfig& trace) {
  if (!trace.file.empty()) {
    MC_RETURN_IF_ERROR(NamedBy("trace_file (MC_STORE_RS_TRACE_FILE)", obs::SetLogFile(trace.file)));
  }
  if (trace.jsonl_file.empty()) return Ok();
  return NamedBy("trace_jsonl_file (MC_STORE_RS_TRACE_JSONL_FILE)",
                 obs::Tracer::OfProcess().OpenFile(trace.jsonl_file, {}));
}

Status StartTracing(const TraceConfig& trace) {
  if (trace.enabled || !trace.file.empty() || !trace.filter.empty()) {
    obs::SetLogLevel(LevelOf(trace.filter));
  }
  obs::Tracer& tracer = obs::Tracer::OfProcess();
  tracer.SetItems(trace.item_metadata, trace.key_mode == "full");
  if (trace.span_events) tracer.LogSpans(true);
  if (trace.otlp_trace) MC_RETURN_IF_ERROR(Server::OfProcess().StartExport(trace));
  const bool traces = trace.span_events || !trace.jsonl_file.empty() || trace.otlp_trace;
  return traces ? tracer.Enable(true) : Ok();
}

}  // namespace

Result<std::string> StartMetricsServer(const std::string& bind_addr, const TraceConfig& trace) {
  return Server::OfProcess().Start(bind_addr, trace);
}

void StopMetricsServer() { Server::OfProcess().Stop(); }

std::string MetricsServerAddress() { return Server::OfProcess().Address(); }

std::string ProcessMetricsText() { return obs::MetricsHub::OfProcess().Text(); }

Status InitTracing(const TraceConfig& trace) {
  MC_RETURN_IF_ERROR(OpenFiles(trace));
  return StartTracing(trace);
}

void StopTracing() { obs::Tracer::OfProcess().StopExport(kStopLimitMs); }

Status client::TraceFrom(const StoreConfig& config) {
  const TraceConfig& trace = config.trace;
  MC_RETURN_IF_ERROR(OpenFiles(trace));
  const bool traces = trace.enabled || !trace.file.empty() || !trace.jsonl_file.empty() ||
                      trace.item_metadata || trace.span_events || trace.otlp_trace;
  if (const Status status = traces ? StartTracing(trace) : Ok(); !status) {
    obs::LogWarning("tracing is not started: " + status.error().context);
  }
  return Ok();
}

void client::ServeMetricsFrom(const StoreConfig& config) {
  std::string address = config.metrics_addr;
  if (address.empty() && config.enable_client_http_server) {
    address = fmt::format("127.0.0.1:{}", config.client_http_port);
  }
  if (address.empty()) return;
  const auto started = StartMetricsServer(address, config.trace);
  if (started.ok()) {
    obs::LogInfo(fmt::format("metrics are served at http://{}", *started));
  } else {
    obs::LogWarning("metrics are not served: " + started.error().context);
  }
}

}  // namespace mooncake

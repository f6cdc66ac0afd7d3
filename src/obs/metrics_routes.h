// The paths of the metrics server: /metrics, /stats, /breakdown, /healthz, /livez and /tracing.
#pragma once

#include <string>

#include "obs/http_server.h"
#include "obs/metrics_hub.h"
#include "obs/tracer.h"

namespace mooncake::obs {

struct RoutesOptions {
  std::string admin_token;     // Empty: nobody has it.
  std::string trace_dir;       // Trace files lie under it; empty: anywhere.
  OtlpOptions otlp{};          // Of an export that /tracing?endpoint= starts.
  Runtime* runtime = nullptr;  // Which that needs; outlives the tracer.
};

class MetricsRoutes {
 public:
  MetricsRoutes(MetricsHub& hub, Tracer& tracer, RoutesOptions options);

  HttpResponse Answer(const HttpRequest& request);

 private:
  HttpResponse Tracing(const HttpRequest& request);
  bool HasToken(const HttpRequest& request) const;
  Status CheckMayChange(const HttpRequest& request) const;
  Status Apply(const HttpRequest& request);
  Status StartExport(const std::string& endpoint);
  std::string TracingStatus() const;

  MetricsHub& hub_;
  Tracer& tracer_;
  const RoutesOptions options_;
};

}  // namespace mooncake::obs

// What a process tells about itself: metrics over HTTP, and a trace of its calls.
//
//   auto address = mooncake::StartMetricsServer("127.0.0.1:9100", {});
//   // curl http://127.0.0.1:9100/metrics, /stats, /breakdown, /healthz, /tracing
//
// One server and one trace for the process; the server shows all of its stores together.
// Thread-safe. docs/observability.md lists the metrics and the shapes of the pages.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "mooncake/config.h"
#include "mooncake/result.h"

namespace mooncake {

// Serves until StopMetricsServer, also while no store is open. `bind_addr` is "host:port"; port 0
// takes any free one. Returns the address in use. When a server runs already, and the request
// is for its address or for any free port of its host, it is that server's. kInvalidArgument: not
// an address; kConflict: a server runs at another one; kTransport: it cannot be listened at.
// `trace` says where /tracing?file= may write, and who may ask for it from afar.
Result<std::string> StartMetricsServer(const std::string& bind_addr, const TraceConfig& trace);
void StopMetricsServer();            // Returns once no request is served. Idempotent.
std::string MetricsServerAddress();  // Empty: there is none.
std::string ProcessMetricsText();    // As /metrics has it.

// Starts what `trace` asks for: a level and a file for the log, a file for spans, their export.
// Idempotent. kInvalidArgument: a file cannot be opened, or the endpoint is no URL; kConflict:
// spans are exported to another endpoint or with another ratio, which stay as they are.
Status InitTracing(const TraceConfig& trace);
// Exports the spans that wait, for at most some seconds, and ends the export. For the end of a
// process; idempotent.
void StopTracing();
// From the variables that setup takes them from (docs/configuration.md).
Result<TraceConfig> TraceConfigFromEnvironment(
    const std::map<std::string, std::string>& environment);

// The name under which the calling thread's calls of a Store are counted and traced, while it
// lives: of the API that was called, such as "put_from", where one method of Store serves
// several. `name` is a constant.
class ApiScope {
 public:
  // What the scopes of a thread say.
  struct State {
    std::string_view name;  // Empty: there is no scope.
    // Items of the call that the caller refused before it asked the store, which counts them.
    uint64_t refused = 0;
  };

  explicit ApiScope(std::string_view name);
  ~ApiScope() { state_ = outer_; }
  ApiScope(const ApiScope&) = delete;
  ApiScope& operator=(const ApiScope&) = delete;

  static State& OfThread();

 private:
  State& state_;
  const State outer_;
};

}  // namespace mooncake

#include "observability.h"

#include <pybind11/stl.h>

#include <map>
#include <string>
#include <utility>

#include "errors.h"
#include "gil.h"
#include "mooncake/observability.h"
#include "obs/tracer.h"

namespace mooncake::python {
namespace {

namespace py = pybind11;
using Texts = std::map<std::string, std::string>;

template <typename T>
T OrThrow(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  if (result.code() == ErrorCode::kInvalidArgument) throw py::value_error(result.error().context);
  Raise(result.error());
  throw py::error_already_set();
}

std::string Start(const std::string& bind_addr, const Texts& environment) {
  const TraceConfig trace = OrThrow(TraceConfigFromEnvironment(environment));
  Result<std::string> started = std::string();
  {
    const WithoutGil released;
    started = StartMetricsServer(bind_addr, trace);
  }
  return OrThrow(std::move(started));
}

void Init(const std::string& filter, const Texts& environment) {
  TraceConfig trace = OrThrow(TraceConfigFromEnvironment(environment));
  trace.enabled = true;
  if (!filter.empty()) trace.filter = filter;
  Status started;
  {
    const WithoutGil released;
    started = InitTracing(trace);
  }
  if (!started.ok()) throw py::value_error(started.error().context);
}

// A batch_put_from that was made as several calls, which have spans of their own.
void TraceFanout(uint64_t start_unix_ns, uint64_t duration_ns, uint64_t items, bool good) {
  obs::Tracer& tracer = obs::Tracer::OfProcess();
  if (!tracer.enabled()) return;
  obs::TraceSpan span;
  span.request = tracer.Begin();
  if (span.request == 0) return;  // Not in the sample.
  span.id = tracer.NextSpan();
  span.name = "python.batch_put_from_fanout";
  span.operation = "batch_put_from";
  span.flow = "put";
  span.result = good ? "ok" : "error";
  span.start_unix_ns = start_unix_ns;
  span.duration_ns = duration_ns;
  span.item_count = items;
  tracer.Write(span);
}

}  // namespace

void AddObservability(py::module_& module) {
  using Released = py::call_guard<WithoutGil>;
  module.def("_trace_fanout", &TraceFanout, py::arg("start_unix_ns"), py::arg("duration_ns"),
             py::arg("items"), py::arg("good"), Released());
  module.def("_init_tracing", &Init, py::arg("filter"), py::arg("environment"));
  module.def("_start_metrics_server", &Start, py::arg("bind_addr"), py::arg("environment"));
  module.def("_stop_metrics_server", &StopMetricsServer, Released());
  module.def("_stop_tracing", &StopTracing, Released());
  module.def("_metrics_server_address", &MetricsServerAddress, Released());
  module.def("_process_metrics_text", &ProcessMetricsText, Released());
  // The server's thread may not outlive what the interpreter's end destroys.
  py::module_::import("atexit").attr("register")(module.attr("_stop_metrics_server"));
  py::module_::import("atexit").attr("register")(module.attr("_stop_tracing"));
}

}  // namespace mooncake::python

// Spans and items as lines of JSON, and as the body of an OTLP export.
#pragma once

#include <map>
#include <span>
#include <string>

#include "obs/trace_span.h"

namespace mooncake::obs {

// The same for all records of a call, and of this process alone.
std::string RequestIdText(uint64_t request);
std::string JsonLine(const TraceSpan& span);
std::string JsonLine(uint64_t request, const TracedItems& items, bool full_keys);
// For a log that people read.
std::string LogLine(const TraceSpan& span);

// An ExportTraceServiceRequest in OTLP's JSON encoding. `seed` tells processes apart.
std::string OtlpBody(std::span<const TraceSpan> spans,
                     const std::map<std::string, std::string>& resource, uint64_t seed);

}  // namespace mooncake::obs

#include "obs/trace_records.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "obs/trace_keys.h"

namespace mooncake::obs {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kNsPerUs = 1'000;
constexpr uint64_t kNsPerMs = 1'000'000;
// Of the OTLP protocol.
constexpr int kSpanKindInternal = 1;
constexpr int kStatusOk = 1;
constexpr int kStatusError = 2;

std::string Dump(const Json& record) {
  return record.dump(-1, ' ', false, Json::error_handler_t::replace);
}

const char* RoleOf(const TraceSpan& span) { return span.parent == 0 ? "root" : "stage"; }

Json AttributesOf(const TraceSpan& span) {
  Json attributes{{"mooncake.component", "store-rs"},
                  {"mooncake.phase", span.phase()},
                  {"mooncake.flow", span.flow},
                  {"mooncake.span_role", RoleOf(span)},
                  {"mooncake.request_id", RequestIdText(span.request)},
                  {"mooncake.root_operation", span.operation},
                  {"mooncake.operation", span.name.substr(span.name.find('.') + 1)},
                  {"mooncake.result", span.result},
                  {"mooncake.bytes_in", span.bytes_in},
                  {"mooncake.bytes_out", span.bytes_out},
                  {"mooncake.item_count", span.item_count},
                  {"mooncake.tenant", span.tenant}};
  if (span.peer_count > 0) attributes["mooncake.remote_target_count"] = span.peer_count;
  if (!span.backend.empty()) attributes["mooncake.metadata.backend"] = span.backend;
  return attributes;
}

Json RecordOf(const TracedItems& all, size_t index, bool full_keys) {
  const TracedItem& item = all.items[index];
  const KeyParts parts = PartsOfKey(item.key);
  return {{"index", index},
          {"key_hash", HashOfKey(item.key)},
          {"key_prefix", PrefixOfKey(item.key)},
          {"key", full_keys ? Json(item.key) : Json(nullptr)},
          {"tenant", all.tenant},
          {"domain", all.domain},
          {"object_set", all.object_set},
          {"tp_rank", parts.tp_rank ? Json(*parts.tp_rank) : Json(nullptr)},
          {"kv_kind", parts.kv_kind.empty() ? Json(nullptr) : Json(parts.kv_kind)},
          {"size", item.size},
          {"read_len", item.read_len < 0 ? Json(nullptr) : Json(item.read_len)},
          {"status", item.status}};
}

// OTLP has its own way to say what kind a value is of.
Json OtlpAttributes(const Json& attributes) {
  Json list = Json::array();
  for (const auto& [name, value] : attributes.items()) {
    Json typed = value.is_number() ? Json{{"intValue", std::to_string(value.get<uint64_t>())}}
                                   : Json{{"stringValue", value}};
    list.push_back({{"key", name}, {"value", std::move(typed)}});
  }
  return list;
}

Json OtlpSpan(const TraceSpan& span, uint64_t seed) {
  Json out{{"traceId", fmt::format("{:016x}{:016x}", seed, base::Mix64(span.request ^ seed) | 1)},
           {"spanId", fmt::format("{:016x}", base::Mix64(span.id ^ seed) | 1)}};
  if (span.parent != 0) {
    out["parentSpanId"] = fmt::format("{:016x}", base::Mix64(span.parent ^ seed) | 1);
  }
  out["name"] = span.name;
  out["kind"] = kSpanKindInternal;
  out["startTimeUnixNano"] = std::to_string(span.start_unix_ns);
  out["endTimeUnixNano"] = std::to_string(span.start_unix_ns + span.duration_ns);
  out["attributes"] = OtlpAttributes(AttributesOf(span));
  out["status"] = {{"code", span.result == "error" ? kStatusError : kStatusOk}};
  return out;
}

}  // namespace

std::string RequestIdText(uint64_t request) { return fmt::format("{:x}-{:x}", getpid(), request); }

std::string JsonLine(const TraceSpan& span) {
  const Json record{{"timestamp_unix_ms", span.start_unix_ns / kNsPerMs},
                    {"duration_us", span.duration_ns / kNsPerUs},
                    {"span_name", span.name},
                    {"phase", span.phase()},
                    {"flow", span.flow},
                    {"role", RoleOf(span)},
                    {"request_id", RequestIdText(span.request)},
                    {"root_operation", span.operation},
                    {"result", span.result},
                    {"bytes_out", span.bytes_out},
                    {"attributes", AttributesOf(span)}};
  return Dump(record) + "\n";
}

std::string JsonLine(uint64_t request, const TracedItems& all, bool full_keys) {
  Json items = Json::array();
  uint64_t bytes = 0;
  for (size_t i = 0; i < all.items.size(); ++i) {
    items.push_back(RecordOf(all, i, full_keys));
    bytes += all.items[i].size;
  }
  const Json record{{"record_type", "store.api_items.v1"},
                    {"timestamp_unix_ms", all.unix_ms},
                    {"trace_request_id", RequestIdText(request)},
                    {"operation", all.operation},
                    {"tenant", all.tenant},
                    {"domain", all.domain},
                    {"object_set", all.object_set},
                    {"runtime_id", all.runtime_id},
                    {"item_count", all.items.size()},
                    {"batch_bytes", bytes},
                    {"items", std::move(items)}};
  return Dump(record) + "\n";
}

std::string LogLine(const TraceSpan& span) {
  return fmt::format("close {} request={} result={} items={} bytes_in={} bytes_out={} time_us={}",
                     span.name, RequestIdText(span.request), span.result, span.item_count,
                     span.bytes_in, span.bytes_out, span.duration_ns / kNsPerUs);
}

std::string OtlpBody(std::span<const TraceSpan> spans,
                     const std::map<std::string, std::string>& resource, uint64_t seed) {
  Json list = Json::array();
  for (const TraceSpan& span : spans) list.push_back(OtlpSpan(span, seed));
  const Json scope{{"scope", {{"name", "mooncake-store"}}}, {"spans", std::move(list)}};
  const Json body{{"resourceSpans",
                   {{{"resource", {{"attributes", OtlpAttributes(Json(resource))}}},
                     {"scopeSpans", {scope}}}}}};
  return Dump(body);
}

}  // namespace mooncake::obs

#include "metadata/records.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/lease_limits.h"

namespace mooncake::metadata {
namespace {

using nlohmann::json;

constexpr size_t kJsonBytesMax = size_t{4} << 20;
constexpr size_t kJsonDepthMax = 8;
constexpr size_t kTextBytesMax = 4096;
constexpr size_t kLabelsMax = 1024;
constexpr size_t kSegmentsMax = 4096;
constexpr size_t kDocumentNameBytesMax = 1024;
constexpr size_t kDocumentBytesMax = size_t{4} << 20;

constexpr std::array<std::pair<NodeState, std::string_view>, 5> kStates{{
    {NodeState::kStandby, "standby"},
    {NodeState::kActive, "active"},
    {NodeState::kDraining, "draining"},
    {NodeState::kSealed, "sealed"},
    {NodeState::kOffline, "offline"},
}};

// Looked at before parsing: destroying a deep value is where a parser's bounds end.
bool TooDeep(std::string_view text) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kJsonDepthMax) return true;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return false;
}

Error Malformed(std::string_view what, std::string_view why) {
  return MetadataError(fmt::format("the metadata service holds a malformed {}: {}", what, why));
}

// Reads the fields of one object and remembers the first thing that is wrong with them, so that
// a record is read as a list of fields with one check at the end.
class Reader {
 public:
  Reader(const json& object, std::string_view what) : object_(object), what_(what) {
    if (!object.is_object()) Fail("not an object");
  }

  void Text(const char* name, std::string& out) {
    const json* field = Find(name);
    if (field == nullptr) return;
    const auto* text = field->get_ptr<const json::string_t*>();
    if (text == nullptr || text->size() > kTextBytesMax) return Fail(name);
    out = *text;
  }

  template <typename Number>
  void Unsigned(const char* name, Number& out) {
    const json* field = Find(name);
    if (field == nullptr) return;
    const auto* number = field->get_ptr<const json::number_unsigned_t*>();
    if (number == nullptr || *number > std::numeric_limits<Number>::max()) return Fail(name);
    out = static_cast<Number>(*number);
  }

  // Older nodes write none, and have the default.
  void SlotBits(uint32_t& out) {
    constexpr const char* kName = "slot_bits";
    if (!object_.is_object() || !object_.contains(kName)) return;
    Unsigned(kName, out);
    if (!IsSlotBits(out)) Fail(kName);
  }

  void Flag(const char* name, bool& out) {
    const json* field = Find(name);
    if (field == nullptr) return;
    const auto* flag = field->get_ptr<const json::boolean_t*>();
    if (flag == nullptr) return Fail(name);
    out = *flag;
  }

  void State(const char* name, NodeState& out) {
    std::string word;
    Text(name, word);
    Result<NodeState> state = ParseNodeState(word);
    if (!state) return Fail(name);
    out = *state;
  }

  // An absent field reads as an empty array or object.
  const json& Items(const char* name, json::value_t kind, size_t items_max) {
    static const json empty = json::array();
    const auto found = object_.is_object() ? object_.find(name) : object_.end();
    if (!object_.is_object() || found == object_.end()) return empty;
    if (found->type() == kind && found->size() <= items_max) return *found;
    Fail(name);
    return empty;
  }

  void Fail(std::string_view why) {
    if (why_.empty()) why_ = why;
  }
  Status Done() const {
    if (!why_.empty()) return Malformed(what_, why_);
    return Ok();
  }

 private:
  const json* Find(const char* name) {
    if (!object_.is_object()) return nullptr;
    const auto found = object_.find(name);
    if (found == object_.end()) return Fail(name), nullptr;
    return &*found;
  }

  const json& object_;
  std::string_view what_;
  std::string why_;
};

Result<json> Parse(std::string_view text, std::string_view what) {
  if (text.size() > kJsonBytesMax) return Malformed(what, "too long");
  if (TooDeep(text)) return Malformed(what, "nested too deeply");
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Malformed(what, "not JSON");
  return value;
}

Result<std::string> Dump(const json& value, std::string_view what) {
  std::string text;
  try {
    text = value.dump();
  } catch (const json::exception&) {  // The only cause is text that is not UTF-8.
    return InvalidArgument(fmt::format("the {} holds text that is not UTF-8", what));
  }
  if (text.size() > kJsonBytesMax) {
    return InvalidArgument(fmt::format("the {} is {} bytes long, at most {} are allowed", what,
                                       text.size(), kJsonBytesMax));
  }
  return text;
}

Status ReadSegment(const json& value, SegmentRecord& segment) {
  Reader reader(value, "segment record");
  reader.Text("name", segment.name);
  reader.Unsigned("capacity_bytes", segment.capacity_bytes);
  reader.Unsigned("used_bytes", segment.used_bytes);
  reader.State("state", segment.state);
  return reader.Done();
}

json LeaseJson(const LeaseRecord& record) {
  json segments = json::array();
  for (const SegmentRecord& segment : record.segments) {
    segments.push_back({{"name", segment.name},
                        {"capacity_bytes", segment.capacity_bytes},
                        {"used_bytes", segment.used_bytes},
                        {"state", NodeStateName(segment.state)}});
  }
  json labels = json::object();
  for (const auto& [name, value] : record.labels) labels[name] = value;
  return {{"stable_id", record.id.stable_id},
          {"epoch", record.id.epoch},
          {"state", NodeStateName(record.state)},
          {"endpoint", record.endpoint},
          {"protocol_major", record.protocol_major},
          {"protocol_minor", record.protocol_minor},
          {"host", record.host},
          {"pid", record.pid},
          {"instance", record.instance},
          {"slot_bits", record.slot_bits},
          {"era", record.era},
          {"beside", record.beside},
          {"labels", std::move(labels)},
          {"segments", std::move(segments)},
          {"suspect", record.suspect}};
}

// Nodes of versions without slot_bits compare the other fields with what they ask for. They must
// not join where the number is another than theirs, so route_control says it, too.
std::string SlotBitsSuffix(const RoutePolicy& policy) {
  if (policy.slot_bits == kSlotBitsDefault) return "";
  return fmt::format(" slot_bits={}", policy.slot_bits);
}

void ApplyUsage(std::string_view usage, std::vector<SegmentRecord>& segments) {
  const char* at = usage.data();
  const char* end = at + usage.size();
  for (SegmentRecord& segment : segments) {
    const auto [next, error] = std::from_chars(at, end, segment.used_bytes);
    if (error != std::errc()) return;  // A hint: what is missing stays 0.
    at = next == end ? next : next + 1;
  }
}

Status CheckText(std::string_view argument, std::string_view text, size_t bytes_max) {
  if (text.size() <= bytes_max) return Ok();
  return InvalidArgument(
      fmt::format("{} is {} bytes long, at most {} are allowed", argument, text.size(), bytes_max));
}

}  // namespace

std::string_view NodeStateName(NodeState state) {
  for (const auto& [value, name] : kStates) {
    if (value == state) return name;
  }
  return "unknown";
}

Result<NodeState> ParseNodeState(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) text = {};
  if (!text.empty()) text = text.substr(first, text.find_last_not_of(kSpace) - first + 1);
  const auto same = [](char a, char b) { return (a >= 'A' && a <= 'Z' ? a + 32 : a) == b; };
  for (const auto& [value, name] : kStates) {
    if (std::equal(text.begin(), text.end(), name.begin(), name.end(), same)) return value;
  }
  return InvalidArgument(
      fmt::format("the node state is '{}', allowed are standby, active, draining, sealed and "
                  "offline",
                  text.substr(0, 32)));
}

Result<std::string> LeaseToJson(const LeaseRecord& record) {
  return Dump(LeaseJson(record), "lease record");
}

Result<LeaseRecord> LeaseFromJson(std::string_view text) {
  MC_TRY(const json value, Parse(text, "lease record"));
  LeaseRecord record;
  Reader reader(value, "lease record");
  reader.Text("stable_id", record.id.stable_id);
  reader.Unsigned("epoch", record.id.epoch);
  reader.State("state", record.state);
  reader.Text("endpoint", record.endpoint);
  reader.Unsigned("protocol_major", record.protocol_major);
  reader.Unsigned("protocol_minor", record.protocol_minor);
  reader.Text("host", record.host);
  reader.Unsigned("pid", record.pid);
  if (value.contains("instance")) reader.Unsigned("instance", record.instance);
  reader.SlotBits(record.slot_bits);
  if (value.contains("era")) reader.Unsigned("era", record.era);
  if (value.contains("beside")) reader.Unsigned("beside", record.beside);
  reader.Flag("suspect", record.suspect);
  for (const auto& item : reader.Items("labels", json::value_t::object, kLabelsMax).items()) {
    const auto* text_of = item.value().get_ptr<const json::string_t*>();
    if (text_of == nullptr || text_of->size() > kTextBytesMax) reader.Fail("labels");
    if (text_of != nullptr) record.labels.emplace(item.key(), *text_of);
  }
  for (const json& item : reader.Items("segments", json::value_t::array, kSegmentsMax)) {
    MC_RETURN_IF_ERROR(ReadSegment(item, record.segments.emplace_back()));
  }
  if (record.id.stable_id.empty()) reader.Fail("stable_id");
  MC_RETURN_IF_ERROR(reader.Done());
  return record;
}

Result<std::string> RoutePolicyToJson(const RoutePolicy& policy) {
  return Dump({{"route_topk", policy.route_topk},
               {"route_control", policy.route_control + SlotBitsSuffix(policy)},
               {"slot_bits", policy.slot_bits},
               {"created_by", policy.created_by},
               {"created_at_ms", policy.created_at_ms}},
              "route policy");
}

Result<RoutePolicy> RoutePolicyFromJson(std::string_view text) {
  MC_TRY(const json value, Parse(text, "route policy"));
  RoutePolicy policy;
  Reader reader(value, "route policy");
  reader.Unsigned("route_topk", policy.route_topk);
  reader.Text("route_control", policy.route_control);
  reader.SlotBits(policy.slot_bits);
  reader.Text("created_by", policy.created_by);
  reader.Unsigned("created_at_ms", policy.created_at_ms);
  MC_RETURN_IF_ERROR(reader.Done());
  const std::string suffix = SlotBitsSuffix(policy);
  if (policy.route_control.ends_with(suffix)) {
    policy.route_control.resize(policy.route_control.size() - suffix.size());
  }
  return policy;
}

Result<EncodedLease> EncodeLease(const LeaseRecord& record) {
  LeaseRecord plain = record;
  plain.id.epoch = 0;
  plain.suspect = false;
  EncodedLease encoded;
  for (SegmentRecord& segment : plain.segments) {
    if (!encoded.usage.empty()) encoded.usage += ',';
    encoded.usage += std::to_string(std::exchange(segment.used_bytes, 0));
  }
  MC_TRY(encoded.core, LeaseToJson(plain));
  return encoded;
}

Result<LeaseRecord> DecodeLease(const NodeId& id, const EncodedLease& encoded, bool suspect) {
  MC_TRY(LeaseRecord record, LeaseFromJson(encoded.core));
  if (record.id.stable_id != id.stable_id) return Malformed("lease record", "stable_id");
  record.id.epoch = id.epoch;
  record.suspect = suspect;
  ApplyUsage(encoded.usage, record.segments);
  return record;
}

Result<NodeId> ParseNodeId(std::string_view text) {
  const size_t colon = text.rfind(':');
  NodeId id;
  if (colon == std::string_view::npos || colon == 0) return Malformed("node id", "no epoch");
  id.stable_id = text.substr(0, colon);
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data() + colon + 1, end, id.epoch);
  if (error != std::errc() || next != end) return Malformed("node id", "no epoch");
  return id;
}

Status CheckLease(const LeaseRecord& record, uint64_t ttl_ms) {
  if (record.id.stable_id.empty()) return InvalidArgument("the stable_id is empty");
  MC_RETURN_IF_ERROR(CheckText("stable_id", record.id.stable_id, kTextBytesMax));
  MC_RETURN_IF_ERROR(CheckText("endpoint", record.endpoint, kTextBytesMax));
  MC_RETURN_IF_ERROR(CheckText("host", record.host, kTextBytesMax));
  for (const auto& [name, value] : record.labels) {
    MC_RETURN_IF_ERROR(CheckText("a name in labels", name, kTextBytesMax));
    MC_RETURN_IF_ERROR(
        CheckText(fmt::format("the value of '{}' in labels", name), value, kTextBytesMax));
  }
  for (const SegmentRecord& segment : record.segments) {
    MC_RETURN_IF_ERROR(CheckText("local_segment_name", segment.name, kTextBytesMax));
  }
  if (record.labels.size() > kLabelsMax || record.segments.size() > kSegmentsMax) {
    return InvalidArgument(fmt::format("{} labels and {} segments; at most {} and {} are allowed",
                                       record.labels.size(), record.segments.size(), kLabelsMax,
                                       kSegmentsMax));
  }
  if (record.id.epoch > kEpochMax) return InvalidArgument("the epoch is larger than 2^53 - 2");
  if (ttl_ms == 0 || ttl_ms > kLeaseMsMax) {
    return InvalidArgument(
        fmt::format("the lease is {} ms long, allowed are 1 to {} ms", ttl_ms, kLeaseMsMax));
  }
  return Ok();
}

Status CheckDocument(std::string_view name, std::string_view text) {
  if (name.empty()) return InvalidArgument("the document's name is empty");
  MC_RETURN_IF_ERROR(CheckText("the document's name", name, kDocumentNameBytesMax));
  return CheckText("the document", text, kDocumentBytesMax);
}

std::string DescribeHolder(const LeaseRecord& record) {
  return fmt::format("{} at {}", record.id.ToString(),
                     record.endpoint.empty() ? "no endpoint" : record.endpoint);
}

}  // namespace mooncake::metadata

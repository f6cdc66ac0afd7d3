#include "metadata/etcd/etcd_json.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/text.h"

namespace mooncake::metadata {
namespace {

using nlohmann::json;

constexpr int kDepthMax = 12;  // An answer to a read has 7.
constexpr size_t kMessageBytesMax = 200;

std::string Encode(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL adds a zero.
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()),
                                   static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

std::optional<std::string> Decode(const std::string& text) {
  if (text.empty()) return std::string();
  std::string bytes(text.size() / 4 * 3, '\0');
  const int size = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                   reinterpret_cast<const unsigned char*>(text.data()),
                                   static_cast<int>(text.size()));
  if (size < 0 || text.size() % 4 != 0) return std::nullopt;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
  bytes.resize(static_cast<size_t>(size) - padding);
  return bytes;
}

Error Malformed(std::string_view what) {
  return MetadataError(fmt::format("etcd gave a malformed answer: {}", what));
}

Result<json> Parse(std::string_view text) {
  const auto shallow = [](int depth, json::parse_event_t, json&) { return depth <= kDepthMax; };
  json value = json::parse(text, shallow, /*allow_exceptions=*/false);
  if (!value.is_object()) return Malformed("not a JSON object");
  return value;
}

// A field; null where it is absent, as the gateway leaves out what is zero.
const json& At(const json& object, const char* name) {
  static const json null;
  const auto found = object.is_object() ? object.find(name) : object.end();
  return !object.is_object() || found == object.end() ? null : *found;
}

// 64-bit numbers are strings in JSON.
std::optional<uint64_t> Number(const json& field) {
  if (field.is_null()) return 0;
  const auto* text = field.get_ptr<const json::string_t*>();
  return text == nullptr ? std::nullopt : base::ParseUint(*text);
}

std::optional<std::string> Bytes(const json& field) {
  if (field.is_null()) return std::string();
  const auto* text = field.get_ptr<const json::string_t*>();
  return text == nullptr ? std::nullopt : Decode(*text);
}

Status ReadKeys(const json& keys, std::vector<EtcdKey>& out) {
  if (keys.is_null()) return Ok();
  if (!keys.is_array()) return Malformed("kvs");
  out.reserve(keys.size());
  for (const json& item : keys) {
    std::optional<std::string> key = Bytes(At(item, "key"));
    std::optional<std::string> value = Bytes(At(item, "value"));
    const std::optional<uint64_t> written = Number(At(item, "mod_revision"));
    const std::optional<uint64_t> lease = Number(At(item, "lease"));
    if (!key || !value || !written || !lease) return Malformed("a key");
    out.push_back({*std::move(key), *std::move(value), *written, *lease});
  }
  return Ok();
}

json RangeJson(const EtcdRange& range) {
  json out = {{"key", Encode(range.key)}};
  if (!range.end.empty()) out["range_end"] = Encode(range.end);
  if (range.revision != 0) out["revision"] = std::to_string(range.revision);
  if (range.changed_since != 0) out["min_mod_revision"] = std::to_string(range.changed_since);
  if (range.oldest_max != 0) {
    out["limit"] = std::to_string(range.oldest_max);
    out["sort_order"] = "ASCEND";
    out["sort_target"] = "MOD";
  }
  if (range.keys_only) out["keys_only"] = true;
  if (range.count_only) out["count_only"] = true;
  return out;
}

std::string Printable(std::string_view text) {
  std::string printable(text.substr(0, kMessageBytesMax));
  for (char& c : printable) {
    if (c < ' ' || c > '~') c = '?';
  }
  return printable;
}

}  // namespace

std::string ReadToJson(std::span<const EtcdRange> ranges) {
  json operations = json::array();
  for (const EtcdRange& range : ranges) operations.push_back({{"request_range", RangeJson(range)}});
  return json{{"success", std::move(operations)}}.dump();
}

Result<EtcdRead> ReadFromJson(std::string_view text, size_t ranges) {
  MC_TRY(const json answer, Parse(text));
  EtcdRead read;
  const std::optional<uint64_t> revision = Number(At(At(answer, "header"), "revision"));
  const std::optional<uint64_t> cluster = Number(At(At(answer, "header"), "cluster_id"));
  if (!revision || !cluster) return Malformed("the header");
  read.revision = *revision;
  read.cluster = *cluster;
  const json& responses = At(answer, "responses");
  if (!responses.is_array() || responses.size() != ranges) return Malformed("responses");
  for (const json& response : responses) {
    const json& range = At(response, "response_range");
    const std::optional<uint64_t> count = Number(At(range, "count"));
    if (!range.is_object() || !count) return Malformed("a range");
    EtcdRangeResult& result = read.ranges.emplace_back();
    result.count = *count;
    MC_RETURN_IF_ERROR(ReadKeys(At(range, "kvs"), result.keys));
  }
  return read;
}

std::string CommitToJson(const EtcdCommit& commit) {
  json compare = json::array();
  for (const EtcdCommit::Expected& expected : commit.expected) {
    compare.push_back({{"key", Encode(expected.key)},
                       {"target", "MOD"},
                       {"result", "EQUAL"},
                       {"mod_revision", std::to_string(expected.written)}});
  }
  json operations = json::array();
  for (const EtcdKey& put : commit.puts) {
    json request = {{"key", Encode(put.key)}, {"value", Encode(put.value)}};
    if (put.lease != 0) request["lease"] = std::to_string(put.lease);
    operations.push_back({{"request_put", std::move(request)}});
  }
  for (const std::string& key : commit.erased) {
    operations.push_back({{"request_delete_range", {{"key", Encode(key)}}}});
  }
  return json{{"compare", std::move(compare)}, {"success", std::move(operations)}}.dump();
}

Result<bool> CommitFromJson(std::string_view text) {
  MC_TRY(const json answer, Parse(text));
  return At(answer, "succeeded") == true;
}

std::string GrantToJson(uint64_t ttl_s) { return json{{"TTL", std::to_string(ttl_s)}}.dump(); }

Result<uint64_t> GrantFromJson(std::string_view text) {
  MC_TRY(const json answer, Parse(text));
  const std::optional<uint64_t> lease = Number(At(answer, "ID"));
  if (!lease || *lease == 0) return Malformed("a lease without an ID");
  return *lease;
}

std::string KeepAliveToJson(uint64_t lease) { return json{{"ID", std::to_string(lease)}}.dump(); }

Result<bool> KeepAliveFromJson(std::string_view text) {
  MC_TRY(const json answer, Parse(text));  // A stream, and this its first message.
  const std::optional<uint64_t> ttl = Number(At(At(answer, "result"), "TTL"));
  if (!ttl || !At(answer, "result").is_object()) return Malformed("a renewed lease");
  return *ttl > 0;
}

std::string LoginToJson(const std::string& username, const std::string& password) {
  // Credentials that are not UTF-8 cannot be right; they must not throw either.
  return json{{"name", username}, {"password", password}}.dump(-1, ' ', false,
                                                               json::error_handler_t::replace);
}

Result<std::string> LoginFromJson(std::string_view text) {
  MC_TRY(const json answer, Parse(text));
  const json& field = At(answer, "token");
  const auto* token = field.get_ptr<const json::string_t*>();
  const bool usable =
      token != nullptr && !token->empty() && token->find_first_of("\r\n") == std::string::npos;
  if (!usable) return Malformed("no token");
  return *token;
}

EtcdRefusal RefusalFromJson(std::string_view text) {
  Result<json> answer = Parse(text);
  if (!answer) return {};
  // In a stream the refusal is one level down.
  const json& outer = At(*answer, "error");
  const json& refusal = outer.is_object() ? outer : *answer;
  const json& code = At(refusal, outer.is_object() ? "grpc_code" : "code");
  const json& message = At(refusal, "message");
  const auto* number = code.get_ptr<const json::number_unsigned_t*>();
  const auto* words = message.get_ptr<const json::string_t*>();
  if (number == nullptr || *number > 16 || words == nullptr) return {};
  return {static_cast<int>(*number), Printable(*words)};
}

}  // namespace mooncake::metadata

#include "client/config/config_parse.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>

#include "routing/rendezvous.h"

namespace mooncake::client_config {
namespace {

constexpr uint64_t kHugepage2M = uint64_t{2} << 20;
constexpr uint64_t kHugepage1G = uint64_t{1} << 30;
constexpr size_t kSecretBytesMax = size_t{64} << 10;  // A device may never end.

std::string RangeText(uint64_t min, uint64_t max) {
  if (max == UINT64_MAX) return "an integer of at least " + std::to_string(min);
  return "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

// Like Lower, with `-` as `_`.
std::string Folded(std::string_view text) {
  std::string folded = Lower(Trim(text));
  std::replace(folded.begin(), folded.end(), '-', '_');
  return folded;
}

Result<std::map<std::string, std::string>> LabelsFromJson(std::string_view field,
                                                          std::string_view text) {
  const Error malformed = NotAllowed(field, text, "a JSON object of strings, or k=v pairs");
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return malformed;
  std::map<std::string, std::string> labels;
  for (const auto& [key, value] : json.items()) {
    if (key.empty() || value.is_structured() || value.is_null()) return malformed;
    labels[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return labels;
}

}  // namespace

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r\n";
  const size_t first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    const std::string_view piece = Trim(text.substr(0, end));
    if (!piece.empty()) pieces.push_back(piece);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return pieces;
}

Error NotAllowed(std::string_view field, std::string_view text, std::string_view allowed) {
  std::string message(field);
  message.append(" is \"").append(text).append("\"; allowed: ").append(allowed);
  return InvalidArgument(std::move(message));
}

Result<bool> ParseBool(std::string_view field, std::string_view text) {
  const std::string lower = Lower(Trim(text));
  for (std::string_view yes : {"1", "true", "t", "yes", "y", "on"}) {
    if (lower == yes) return true;
  }
  for (std::string_view no : {"0", "false", "f", "no", "n", "off"}) {
    if (lower == no) return false;
  }
  return NotAllowed(field, text, "true or false (also 1/0, yes/no, on/off)");
}

Result<uint64_t> ParseInteger(std::string_view field, std::string_view text, uint64_t min,
                              uint64_t max) {
  const std::string_view digits = Trim(text);
  uint64_t value = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  const bool whole = failure == std::errc() && end == digits.data() + digits.size();
  if (!whole || value < min || value > max) return NotAllowed(field, text, RangeText(min, max));
  return value;
}

Result<uint64_t> ParseHugepageSize(std::string_view field, std::string_view text) {
  const std::string lower = Lower(Trim(text));
  for (std::string_view spelling : {"2m", "2mb", "2097152"}) {
    if (lower == spelling) return kHugepage2M;
  }
  for (std::string_view spelling : {"1g", "1gb", "1073741824"}) {
    if (lower == spelling) return kHugepage1G;
  }
  return NotAllowed(field, text, "2MB or 1GB");
}

Result<std::string> ParseChoice(std::string_view field, std::string_view text,
                                std::string_view choices) {
  const std::string folded = Folded(text);
  std::string names;
  for (std::string_view group : Split(choices, ' ')) {
    const std::vector<std::string_view> spellings = Split(group, '|');
    for (std::string_view spelling : spellings) {
      if (folded == spelling) return std::string(spellings.front());
    }
    names.append(names.empty() ? "" : ", ").append(spellings.front());
  }
  return NotAllowed(field, text, names);
}

Result<std::map<std::string, std::string>> ParseLabels(std::string_view field,
                                                       std::string_view text) {
  if (Trim(text).starts_with('{')) return LabelsFromJson(field, Trim(text));
  std::map<std::string, std::string> labels;
  for (std::string_view pair : Split(text, ',')) {
    const size_t equals = pair.find('=');
    const std::string_view key = Trim(pair.substr(0, equals));
    if (equals == std::string_view::npos || key.empty()) {
      return NotAllowed(field, text, "k=v pairs with commas between, or a JSON object");
    }
    labels[std::string(key)] = Trim(pair.substr(equals + 1));
  }
  return labels;
}

Status NormaliseLabels(std::map<std::string, std::string>* labels) {
  for (const char* name : {"storage", "route"}) {
    const auto found = labels->find(name);
    if (found == labels->end()) continue;
    MC_TRY(const bool yes, ParseBool(std::string("the label ") + name, found->second));
    found->second = yes ? "true" : "false";
  }
  const auto weight = labels->find("route_weight");
  if (weight == labels->end()) return Ok();
  const std::string& text = weight->second;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value >= routing::kWeightMin && value <= routing::kWeightMax) return Ok();
  return NotAllowed("the label route_weight", text, "a number above 0, from 1/1024 to 1024");
}

Result<std::string> ReadSecret(std::string_view field, std::string_view path,
                               std::string_view what) {
  std::ifstream file{std::string(path)};
  std::string content(kSecretBytesMax + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  content.resize(static_cast<size_t>(file.gcount()));
  std::string secret(Trim(content));
  if (secret.empty() || content.size() > kSecretBytesMax) {
    return NotAllowed(
        field, path,
        "the path of a readable file with the " + std::string(what) + ", of at most 64 KiB");
  }
  return secret;
}

Status CheckNoTls(const std::map<std::string, std::string>& environment) {
  for (const char* name :
       {"MC_STORE_RS_TLS_CERT_FILE", "MC_STORE_RS_TLS_KEY_FILE", "MC_STORE_RS_TLS_CA_FILE"}) {
    const auto found = environment.find(name);
    if (found == environment.end() || Trim(found->second).empty()) continue;
    return InvalidArgument(
        std::string(name) +
        " is set: TLS is not supported between clients, daemons and nodes; unset "
        "it, and use the cluster secret (MC_STORE_RS_CLUSTER_SECRET)");
  }
  return Ok();
}

}  // namespace mooncake::client_config

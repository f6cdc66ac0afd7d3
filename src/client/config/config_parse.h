// From the text of a setting to its value. Every failure is kInvalidArgument and names the
// field, the text and what is allowed, so that the caller can pass it on as it is.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mooncake/result.h"

namespace mooncake::client_config {

std::string_view Trim(std::string_view text);
std::string Lower(std::string_view text);
// Without the empty pieces, each trimmed.
std::vector<std::string_view> Split(std::string_view text, char separator);

// `FIELD is "TEXT"; allowed: ALLOWED`.
Error NotAllowed(std::string_view field, std::string_view text, std::string_view allowed);

// 1, true, t, yes, y, on and their opposites, any case.
Result<bool> ParseBool(std::string_view field, std::string_view text);

// A decimal integer in [min, max].
Result<uint64_t> ParseInteger(std::string_view field, std::string_view text, uint64_t min,
                              uint64_t max);

// 2M, 2MB, 2097152, 1G, 1GB or 1073741824, any case.
Result<uint64_t> ParseHugepageSize(std::string_view field, std::string_view text);

// `choices` is "name|other spelling|... name|...": any spelling gives the first of its group.
// Case does not matter, and `-` is as good as `_`.
Result<std::string> ParseChoice(std::string_view field, std::string_view text,
                                std::string_view choices);

// A JSON object of plain values, or k=v pairs with commas between.
Result<std::map<std::string, std::string>> ParseLabels(std::string_view field,
                                                       std::string_view text);

// Refuses values that the labels with a meaning cannot have, in this node's own; of other nodes
// they are put up with. `storage` and `route` become "true" or "false".
Status NormaliseLabels(std::map<std::string, std::string>* labels);

// What a file holds, without the space around it; `what` is that, for the message. A file without
// anything, or with more than 64 KiB, is none.
Result<std::string> ReadSecret(std::string_view field, std::string_view path,
                               std::string_view what);

// Refuses the variables that ask for TLS between processes: there is none, and whoever sets them
// counts on it.
Status CheckNoTls(const std::map<std::string, std::string>& environment);

// Refuses values that make no sense in variables for others than real clients, which may be set for
// both; says once per setup which of those that are set have no effect.
Status CheckEnvironment(const std::map<std::string, std::string>& environment);

}  // namespace mooncake::client_config

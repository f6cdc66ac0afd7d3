#include <optional>

#include "base/text.h"
#include "mooncake/config.h"

namespace mooncake {
namespace {

using base::Lower;
using base::ParseUint;
using base::StrCat;
using base::Trim;

// More digits than that after the point cannot change the number of bytes.
constexpr size_t kFractionDigitsMax = 18;
constexpr std::string_view kDigits = "0123456789";

// How far the unit shifts a number to the left. Empty: no unit.
std::optional<int> ShiftOf(std::string_view unit) {
  if (unit.empty() || unit == "b") return 0;
  const size_t power = std::string_view("kmgt").find(unit.front());
  const std::string_view suffix = unit.substr(1);
  if (power == std::string_view::npos) return std::nullopt;
  if (!suffix.empty() && suffix != "b" && suffix != "ib") return std::nullopt;
  return static_cast<int>(power + 1) * 10;
}

// Integers only: a floating-point number would be off by some bytes beyond 2^53.
std::optional<uint64_t> Scale(std::string_view whole, std::string_view fraction, int shift) {
  const std::optional<uint64_t> number = ParseUint(whole, UINT64_MAX >> shift);
  if (!number) return std::nullopt;
  unsigned __int128 bytes = static_cast<unsigned __int128>(*number) << shift;
  fraction = fraction.substr(0, kFractionDigitsMax);
  if (!fraction.empty()) {
    uint64_t denominator = 1;
    for (size_t i = 0; i < fraction.size(); ++i) denominator *= 10;
    bytes += (static_cast<unsigned __int128>(*ParseUint(fraction)) << shift) / denominator;
  }
  return static_cast<uint64_t>(bytes);
}

}  // namespace

Result<uint64_t> ParseSize(std::string_view field, std::string_view text) {
  const auto bad = [&](std::string_view why) {
    return InvalidArgument(StrCat(field, ": \"", text, "\" ", why,
                                  "; allowed: a number with an optional unit B, K, M, G or T "
                                  "(KB and KiB too; all are powers of 1024), below 16 EiB"));
  };
  const std::string lower = Lower(Trim(text));
  std::string_view rest = lower;
  const std::string_view whole = rest.substr(0, rest.find_first_not_of(kDigits));
  if (whole.empty()) return bad("does not start with a number");
  rest.remove_prefix(whole.size());
  std::string_view fraction;
  if (rest.starts_with('.')) {
    rest.remove_prefix(1);
    fraction = rest.substr(0, rest.find_first_not_of(kDigits));
    if (fraction.empty()) return bad("has no digit after the point");
    rest.remove_prefix(fraction.size());
  }
  const std::optional<int> shift = ShiftOf(Trim(rest));
  if (!shift) return bad("has an unknown unit");
  if (*shift == 0 && fraction.find_first_not_of('0') != std::string_view::npos) {
    return bad("is not a whole number of bytes");
  }
  const std::optional<uint64_t> bytes = Scale(whole, fraction, *shift);
  if (!bytes) return bad("is too large");
  return *bytes;
}

}  // namespace mooncake

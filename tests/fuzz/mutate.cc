#include "fuzz/mutate.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace mooncake::fuzz {
namespace {

constexpr size_t kRandomBytesMax = 300;
constexpr size_t kRunBytesMax = 2'000;
constexpr size_t kLongRunBytesMax = 100'000;
constexpr uint64_t kLongRunOneIn = 40;  // The others stay quick.
constexpr size_t kGrowthBytesMax = 1 << 17;

// What texts are made of, and what breaks them.
const std::vector<std::string> kWords = {"0",
                                         "-1",
                                         "1.5",
                                         "18446744073709551615",
                                         "18446744073709551616",
                                         "1e999",
                                         "null",
                                         "true",
                                         "4294967296",
                                         "9223372036854775808",
                                         "65535",
                                         "nan",
                                         "0x10",
                                         "99999999999999999999",
                                         std::string(1, '\0'),
                                         "%",
                                         "%4",
                                         "%00",
                                         "%zz",
                                         "\xff\xfe",
                                         "\xc3",
                                         "\r\n",
                                         "\n",
                                         "\xed\xa0\x80",
                                         "\\ud800",
                                         "://",
                                         "@",
                                         ":",
                                         "[::1]",
                                         "::",
                                         "?",
                                         "&",
                                         "=",
                                         "#",
                                         ",",
                                         " ",
                                         "\t",
                                         "\"",
                                         "\\",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "/",
                                         ".."};

// What nests, each with what closes it.
const std::vector<std::pair<std::string, std::string>> kNests = {
    {"[", "]"}, {"{\"a\":", "}"}, {"{", "}"}, {"(", ")"}, {"[[", ""}, {"{\"a\":[", ""}};

std::string Repeated(std::string_view text, size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (size_t i = 0; i < times; ++i) all.append(text);
  return all;
}

size_t RunLength(Random& random) {
  return 1 + random.Below(random.OneIn(kLongRunOneIn) ? kLongRunBytesMax : kRunBytesMax);
}

std::string Number(Random& random) {
  const uint64_t number = random.Extreme();
  const size_t bytes = size_t{1} << random.Below(4);
  std::string text(bytes, '\0');
  std::memcpy(text.data(), &number, bytes);  // Little-endian, as ours are; HTTP/2's are not.
  if (random.OneIn(3)) std::ranges::reverse(text);
  return text;
}

// As Protobuf writes it.
std::string Varint(Random& random) {
  uint64_t number = random.Extreme();
  std::string text;
  for (; number >= 0x80; number >>= 7) text.push_back(static_cast<char>(number | 0x80));
  text.push_back(static_cast<char>(number));
  return text;
}

void Overwrite(std::string& input, size_t at, const std::string& with) {
  input.replace(at, std::min(with.size(), input.size() - at), with);
}

void ChangeText(std::string& input, size_t at, Random& random) {
  const size_t left = input.size() - at;
  switch (random.Below(5)) {
    case 0: input.insert(at, random.Of(kWords)); break;
    case 1:
      input.replace(at, random.Below(std::min<size_t>(left, 8) + 1), random.Of(kWords));
      break;
    case 2: {  // A number for a number.
      const size_t first = input.find_first_of("0123456789", at);
      if (first == std::string::npos) break;
      const size_t end = std::min(input.find_first_not_of("0123456789", first), input.size());
      input.replace(first, end - first,
                    random.OneIn(2) ? std::to_string(random.Extreme()) : random.Of(kWords));
      break;
    }
    case 3: {
      const auto& [open, close] = random.Of(kNests);
      const size_t depth = RunLength(random) / open.size();
      input.insert(at, Repeated(close, depth));
      input.insert(random.Below(at + 1), Repeated(open, depth));
      break;
    }
    default: input.insert(at, std::string(RunLength(random), static_cast<char>(random.Next())));
  }
}

void ChangeBinary(std::string& input, size_t at, Random& random) {
  switch (random.Below(4)) {
    case 0: Overwrite(input, at, Number(random)); break;
    case 1: Overwrite(input, at, Varint(random)); break;
    case 2: input.insert(at, Varint(random)); break;
    default: input.insert(at, std::string(RunLength(random), static_cast<char>(random.Next())));
  }
}

}  // namespace

uint64_t Random::Extreme() {
  switch (Below(4)) {
    case 0: return Below(4);
    case 1: return UINT64_MAX - Below(4);
    case 2: return (uint64_t{1} << Below(64)) - 1 + Below(3);
    default: return Next() >> Below(64);
  }
}

std::string Random::Bytes(size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(Next());
  return bytes;
}

void Change(std::string& input, const std::vector<std::string>& samples, Format format,
            Random& random) {
  const size_t at = random.Below(input.size() + 1);
  const size_t left = input.size() - at;
  switch (random.Below(11)) {
    case 0:
      if (left > 0) input[at] ^= static_cast<char>(1U << random.Below(8));
      break;
    case 1:
      if (left > 0) input[at] = static_cast<char>(random.Next());
      break;
    case 2: input.resize(at); break;
    case 3: input.erase(at, 1 + random.Below(std::min<size_t>(left, 16) + 1)); break;
    case 4: input.append(random.Bytes(1 + random.Below(32))); break;
    case 5: input.insert(at, random.Bytes(1 + random.Below(8))); break;
    case 6: {  // The end of another sample.
      const std::string& other = random.Of(samples);
      input.resize(at);
      input.append(other.substr(random.Below(other.size() + 1)));
      break;
    }
    case 7: input.insert(at, input.substr(random.Below(at + 1), 1 + random.Below(64))); break;
    default:
      format == Format::kText ? ChangeText(input, at, random) : ChangeBinary(input, at, random);
  }
}

std::string InputFrom(const std::vector<std::string>& samples, Format format, Random& random) {
  if (random.OneIn(10)) return random.Bytes(random.Below(kRandomBytesMax));
  std::string input = random.Of(samples);
  if (random.OneIn(20)) return input;
  const size_t size_max = input.size() + kGrowthBytesMax;
  for (uint64_t changes = 1 + random.Below(4); changes > 0; --changes) {
    Change(input, samples, format, random);
    if (input.size() > size_max) break;
  }
  return input;
}

}  // namespace mooncake::fuzz

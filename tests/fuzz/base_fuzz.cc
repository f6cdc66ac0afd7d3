// Addresses, URLs, sizes and numbers as people write them.
#include <gtest/gtest.h>

#include "base/hostport.h"
#include "base/text.h"
#include "base/url.h"
#include "fuzz/fuzz.h"
#include "mooncake/config.h"

namespace mooncake::fuzz {
namespace {

using base::HostPort;
using base::Url;

TEST(BaseFuzz, AnAddressIsReadAsItIsWritten) {
  RunTarget({.samples = {"host", "host:1", "[::1]:65535", "[fe80::1%eth0]", "::1", "10.0.0.1:4000"},
             .check = [](const std::string& input) {
               const Result<HostPort> parsed = base::ParseHostPort("some_field", input);
               if (!parsed) {
                 return WrongError(parsed.error(), ErrorCode::kInvalidArgument, "some_field");
               }
               MC_FUZZ_CHECK(!parsed->host.empty());
               MC_FUZZ_CHECK(base::ParseHostPort("f", parsed->ToString()).value_or({}) == *parsed);
               return kRight;
             }});
}

TEST(BaseFuzz, AUrlComesOutAsItWentInAndKeepsItsPassword) {
  const std::string password(kPassword);
  RunTarget({.samples = {"redis://user:" + password + "@host:6379/0?a=b", "memory://NAME",
                         "etcd://u:" + password + "@a:1,b:2/prefix?tls=true", "sqlite:///tmp/x.db",
                         "HTTP://[::1]:80/p?q", "rediss://:" + password + "%41@h"},
             .check = [](const std::string& input) {
               const Result<Url> parsed = base::ParseUrl("some_url", input);
               MC_FUZZ_CHECK(!Leaks(input, base::RedactUrl(input)));
               if (!parsed) {
                 MC_FUZZ_CHECK(!Leaks(input, parsed.error().context));
                 return WrongError(parsed.error(), ErrorCode::kInvalidArgument, "some_url");
               }
               MC_FUZZ_CHECK(parsed->password.empty() ||
                             parsed->Redacted().find(":***@") != std::string::npos);
               MC_FUZZ_CHECK(base::Lower(parsed->scheme) == parsed->scheme);
               // Without credentials, whose encoding is not kept, it can be written and read again.
               Url plain = *parsed;
               plain.user = plain.password = {};
               const Result<Url> again = base::ParseUrl("again", plain.Redacted());
               MC_FUZZ_CHECK(again.ok() && again->host == plain.host && again->port == plain.port &&
                             again->path == plain.path && again->query == plain.query);
               return kRight;
             }});
}

TEST(BaseFuzz, WhatWasPercentEncodedIsDecoded) {
  RunTarget(
      {.samples = {"a%41b", "%00%ff", "plain", "%e2%82%ac"}, .check = [](const std::string& input) {
         std::string encoded;
         for (const char c : input) {
           constexpr char kDigits[] = "0123456789abcdef";
           const auto byte = static_cast<unsigned char>(c);
           encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
         }
         MC_FUZZ_CHECK(base::PercentDecode(encoded) == input);
         const auto decoded = base::PercentDecode(input);
         MC_FUZZ_CHECK(!decoded || decoded->size() <= input.size());
         return kRight;
       }});
}

TEST(BaseFuzz, ANumberIsItsDigits) {
  RunTarget({.samples = {"0", "18446744073709551615", "65535", "007"},
             .check = [](const std::string& input) {
               const auto number = base::ParseUint(input);
               if (number) {
                 const std::string digits = std::to_string(*number);
                 MC_FUZZ_CHECK(input.ends_with(digits));
                 const size_t zeros = input.size() - digits.size();
                 MC_FUZZ_CHECK(input.find_first_not_of('0') >= zeros);
               }
               MC_FUZZ_CHECK(base::ParseUint(input, 65535) ==
                             (number && *number <= 65535 ? number : std::nullopt));
               return kRight;
             }});
}

TEST(BaseFuzz, ASizeIsANumberOfBytesThatReadsAsItself) {
  RunTarget({.samples = {"64MB", "1.5 GiB", "0", "16384T", "18446744073709551615 b", "0.5k"},
             .check = [](const std::string& input) {
               const Result<uint64_t> size = ParseSize("some_size", input);
               if (!size) return WrongError(size.error(), ErrorCode::kInvalidArgument, "some_size");
               MC_FUZZ_CHECK(ParseSize("again", std::to_string(*size)).value_or(~*size) == *size);
               MC_FUZZ_CHECK(ParseSize("again", " " + input + "\t").value_or(~*size) == *size);
               return kRight;
             }});
}

TEST(BaseFuzz, PiecesOfATextMakeItUpAgain) {
  RunTarget({.samples = {"a,b,,c", "", ",", " a\t"}, .check = [](const std::string& input) {
               std::string joined;
               for (const std::string_view piece : base::Split(input, ',')) {
                 joined.append(piece).append(",");
               }
               MC_FUZZ_CHECK(joined == input + ",");
               const std::string_view trimmed = base::Trim(input);
               MC_FUZZ_CHECK(base::Trim(trimmed) == trimmed &&
                             input.find(trimmed) < input.size() + 1);
               return kRight;
             }});
}

}  // namespace
}  // namespace mooncake::fuzz

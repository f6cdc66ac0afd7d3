#include "metadata/net/tls_query.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/text.h"
#include "base/url.h"

namespace mooncake::metadata {
namespace {

std::string* FieldOf(std::string_view name, TlsOptions& options) {
  if (name == "tls_ca") return &options.ca_file;
  if (name == "tls_cert") return &options.cert_file;
  if (name == "tls_key") return &options.key_file;
  if (name == "tls_name") return &options.name;
  return nullptr;
}

}  // namespace

Result<TlsOptions> ParseTlsQuery(std::string_view query) {
  TlsOptions options;
  if (query.empty()) return options;
  for (const std::string_view part : base::Split(query, '&')) {
    const size_t equals = part.find('=');
    const std::string_view name = part.substr(0, equals);
    std::string* field = FieldOf(name, options);
    if (field == nullptr || equals == std::string_view::npos) {
      return InvalidArgument(
          fmt::format("metadata_url: the parameter '{}' is unknown; allowed are tls_ca=FILE, "
                      "tls_cert=FILE, tls_key=FILE and tls_name=NAME",
                      name));
    }
    std::optional<std::string> value = base::PercentDecode(part.substr(equals + 1));
    if (!value) {
      return InvalidArgument(
          fmt::format("metadata_url: the parameter {} has a broken % escape", name));
    }
    *field = *std::move(value);
  }
  if (!options.key_file.empty() && options.cert_file.empty()) {
    return InvalidArgument("metadata_url: tls_key needs tls_cert");
  }
  return options;
}

}  // namespace mooncake::metadata

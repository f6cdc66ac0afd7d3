#include "metadata/etcd/etcd_url.h"

#include <fmt/format.h>

#include <utility>

#include "base/hostport.h"
#include "base/text.h"
#include "base/url.h"
#include "metadata/net/tls_query.h"

namespace mooncake::metadata {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::string_view kForm =
    "etcd://[user:password@]host:port[,host:port][/prefix][?tls=true&tls_ca=FILE...]";
constexpr size_t kEndpointsMax = 16;

Error Malformed(std::string_view part, std::string_view why) {
  return InvalidArgument(fmt::format("metadata_url: {} {}; the form is {}", part, why, kForm));
}

Status ParseCredentials(std::string_view text, EtcdAddress& address) {
  const size_t colon = text.find(':');
  const auto username = base::PercentDecode(text.substr(0, colon));
  if (colon == std::string_view::npos || !username || username->empty()) {
    return Malformed("the credentials", "are not user:password");
  }
  const auto password = base::PercentDecode(text.substr(colon + 1));
  if (!password) return Malformed("the credentials", "have a broken % escape");
  address.username = *username;
  address.password = *password;
  return Ok();
}

Status ParseEndpoints(std::string_view text, EtcdAddress& address) {
  for (const std::string_view part : base::Split(text, ',')) {
    Result<base::HostPort> found = base::ParseHostPort("metadata_url", part);
    if (!found || found->port == 0) return Malformed("the list of hosts", "is malformed");
    address.endpoints.push_back({std::move(found->host), found->port.value_or(2379)});
  }
  if (address.endpoints.size() > kEndpointsMax) {
    return Malformed("the list of hosts", fmt::format("has more than {} entries", kEndpointsMax));
  }
  return Ok();
}

// `query` with tls=true taken out; the rest are parameters of TLS.
Status ParseQuery(std::string_view query, EtcdAddress& address) {
  std::string rest;
  for (const std::string_view part : base::Split(query, '&')) {
    if (part == "tls=true") continue;
    if (part.starts_with("tls=")) return Malformed("the parameter tls", "can only be true");
    rest.append(rest.empty() ? "" : "&").append(part);
  }
  MC_TRY(address.tls, ParseTlsQuery(rest));
  for (const EtcdEndpoint& endpoint : address.endpoints) {
    MC_RETURN_IF_ERROR(Tls::New(*address.tls, endpoint.host));
  }
  return Ok();
}

}  // namespace

std::string EtcdEndpoint::ToString() const {
  return fmt::format("{}{}", kScheme, base::JoinHostPort(host, port));
}

Result<EtcdAddress> ParseEtcdUrl(std::string_view url) {
  if (!url.starts_with(kScheme)) return Malformed("the scheme", "is not etcd://");
  std::string_view rest = url.substr(kScheme.size());
  EtcdAddress address;
  // The last @: an unescaped one in a password is a common slip, and hosts have none.
  const size_t at = rest.rfind('@');
  if (at != std::string_view::npos) {
    MC_RETURN_IF_ERROR(ParseCredentials(rest.substr(0, at), address));
    rest.remove_prefix(at + 1);
  }
  const size_t question = rest.find('?');
  const std::string_view place = rest.substr(0, question);
  const size_t slash = place.find('/');
  MC_RETURN_IF_ERROR(ParseEndpoints(place.substr(0, slash), address));
  if (slash != std::string_view::npos) {
    const auto prefix = base::PercentDecode(place.substr(slash));
    if (!prefix) return Malformed("the prefix", "has a broken % escape");
    address.prefix = prefix->substr(0, prefix->find_last_not_of('/') + 1);
  }
  if (question != std::string_view::npos) {
    MC_RETURN_IF_ERROR(ParseQuery(rest.substr(question + 1), address));
  }
  return address;
}

}  // namespace mooncake::metadata

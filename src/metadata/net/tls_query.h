// The part of a metadata URL behind the question mark:
// ?tls_ca=FILE&tls_cert=FILE&tls_key=FILE&tls_name=NAME, percent-decoded.
#pragma once

#include <string_view>

#include "metadata/net/tls.h"
#include "mooncake/result.h"

namespace mooncake::metadata {

// kInvalidArgument: an unknown parameter, a broken escape, or a key without a certificate.
Result<TlsOptions> ParseTlsQuery(std::string_view query);

}  // namespace mooncake::metadata

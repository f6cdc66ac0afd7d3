// The head of an HTTP/1.x request, parsed. Strict: what is odd is refused, as nothing that asks
// for metrics needs it.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace mooncake::obs {

struct HttpRequest {
  std::string path;                            // Decoded, without the query.
  std::map<std::string, std::string> query;    // Decoded; the last of a name counts.
  std::map<std::string, std::string> headers;  // Names in lower case.
  bool from_loopback = false;                  // Of the connection's other end.
};

// Parses a head that ends in an empty line. Returns 0, or the status to refuse it with: 400, 405
// or 505.
int ParseHttpRequest(std::string_view head, HttpRequest* request);

}  // namespace mooncake::obs

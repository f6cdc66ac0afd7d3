#include "routing/scope.h"

#include "base/hash.h"

namespace mooncake::routing {
namespace {

void AppendField(std::string_view field, std::string& text) {
  text += std::to_string(field.size());
  text += ':';
  text += field;
}

// By value, not by locale: nodes must agree.
bool IsPlain(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
         c == '_' || c == '.';
}

void AppendEncoded(std::string_view component, std::string& text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  for (char c : component) {
    if (IsPlain(c)) {
      text += c;
      continue;
    }
    auto byte = static_cast<unsigned char>(c);
    text += '%';
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
}

}  // namespace

uint64_t ScopeSeed(const Scope& scope) { return base::Hash64(ScopeText(scope)); }

uint64_t KeyHash(uint64_t scope_seed, std::string_view key) {
  return base::Mix64(base::Hash64(key, scope_seed));
}

std::string ScopeText(const Scope& scope) {
  std::string text;
  AppendField(scope.tenant, text);
  AppendField(scope.domain, text);
  AppendField(scope.object_set, text);
  return text;
}

std::string RouteKeyText(const Scope& scope, std::string_view key) {
  std::string text;
  if (scope.domain == "default" && scope.object_set == "default") {
    text.append(scope.tenant).append("::").append(key);
    return text;
  }
  AppendEncoded(scope.tenant, text);
  text += "::ns/";
  AppendEncoded(scope.domain, text);
  text += '/';
  AppendEncoded(scope.object_set, text);
  text += '/';
  AppendEncoded(key, text);
  return text;
}

}  // namespace mooncake::routing

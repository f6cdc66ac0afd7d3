#include "node/types.h"

#include <charconv>

#include "base/text.h"

namespace mooncake::node {

ErrorCode ErrorCodeOf(ItemCode code) {
  switch (code) {
    case 0:
    case -1:
    case -2:
    case -3:
    case -4:
    case -5:
    case -6:
    case -7:
    case -9:
    case -10:
    case -11:
    case -22:
    case -200: return static_cast<ErrorCode>(code);
    case kItemRetryLater:
    case kItemWrongAuthority: return ErrorCode::kTransport;
    default: return ErrorCode::kNotFound;
  }
}

ErrorReason ErrorReasonOf(ItemCode code) {
  switch (code) {
    case kItemEvicted: return ErrorReason::kEvicted;
    case kItemOwnerGone: return ErrorReason::kOwnerDead;
    case kItemOtherScope: return ErrorReason::kOtherScope;
    default: return ErrorReason::kUnspecified;
  }
}

NameTable::NameTable(std::string self) {
  index_.emplace(self, kSelf);
  names_.push_back(std::move(self));
}

std::optional<NameIndex> NameTable::IndexOf(std::string_view name) {
  if (name.empty() || name.size() > kNameSizeMax) return std::nullopt;
  const std::string key(name);
  base::MutexLock lock(mu_);
  if (auto found = index_.find(key); found != index_.end()) return found->second;
  if (names_.size() >= kNamesMax || bytes_ + key.size() > kBytesMax) return std::nullopt;
  if (!base::IsUtf8(name)) return std::nullopt;
  bytes_ += key.size();
  const auto index = static_cast<NameIndex>(names_.size());
  names_.push_back(key);
  index_.emplace(key, index);
  return index;
}

std::optional<NameIndex> NameTable::Find(std::string_view name) const {
  const std::string key(name);
  base::MutexLock lock(mu_);
  const auto found = index_.find(key);
  return found != index_.end() ? std::optional(found->second) : std::nullopt;
}

size_t NameTable::size() const {
  base::MutexLock lock(mu_);
  return names_.size();
}

std::string NameTable::NameOf(NameIndex index) const {
  base::MutexLock lock(mu_);
  return index < names_.size() ? names_[index] : std::string();
}

namespace {
bool IsTooLarge(const routing::Scope& scope) {
  return scope.tenant.size() + scope.domain.size() + scope.object_set.size() > kScopeSizeMax;
}
}  // namespace

std::optional<ScopeTable::Entry> ScopeTable::Look(const routing::Scope& scope) const {
  if (IsTooLarge(scope)) return std::nullopt;
  const std::string text = routing::ScopeText(scope);
  {
    base::MutexLock lock(mu_);
    if (auto found = index_.find(text); found != index_.end()) return found->second;
  }
  return Entry{kNoScope, routing::ScopeSeed(scope)};
}

size_t ScopeTable::size() const {
  base::MutexLock lock(mu_);
  return scopes_.size();
}

std::optional<ScopeTable::Entry> ScopeTable::Intern(const routing::Scope& scope) {
  if (IsTooLarge(scope)) return std::nullopt;
  const std::string text = routing::ScopeText(scope);
  base::MutexLock lock(mu_);
  if (auto found = index_.find(text); found != index_.end()) return found->second;
  if (scopes_.size() >= kScopesMax || bytes_ + text.size() > kBytesMax) return std::nullopt;
  for (const std::string& part : {scope.tenant, scope.domain, scope.object_set}) {
    if (!base::IsUtf8(part)) return std::nullopt;
  }
  bytes_ += text.size();
  const Entry entry{static_cast<ScopeIndex>(scopes_.size()), routing::ScopeSeed(scope)};
  scopes_.push_back(scope);
  index_.emplace(text, entry);
  return entry;
}

routing::Scope ScopeTable::ScopeOf(ScopeIndex index) const {
  base::MutexLock lock(mu_);
  return index < scopes_.size() ? scopes_[index] : routing::Scope{};
}

Result<NodeId> ParseNodeName(std::string_view name) {
  const size_t colon = name.rfind(':');
  NodeId id;
  if (colon != std::string_view::npos && colon > 0) {
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + colon + 1, end, id.epoch);
    if (parsed.ec == std::errc() && parsed.ptr == end) {
      id.stable_id = std::string(name.substr(0, colon));
      return id;
    }
  }
  return InvalidArgument("node name '" + std::string(name) + "': expected stable_id:epoch");
}

}  // namespace mooncake::node

#include "client/dummy/place_hints.h"

#include "base/hash.h"

namespace mooncake::client {

uint64_t PlaceHints::KeyOf(std::string_view tenant, std::string_view key) {
  const uint64_t hash = base::Hash64(key, tenant.empty() ? 0 : base::Hash64(tenant));
  return hash != 0 ? hash : 1;
}

std::vector<PlaceHints::Hint> PlaceHints::Find(std::span<const uint64_t> keys) const {
  std::vector<Hint> found(keys.size());
  base::MutexLock lock(mu_);
  if (hints_.empty()) return found;
  for (size_t i = 0; i < keys.size(); ++i) {
    const Hint& hint = hints_[keys[i] % kHints];
    if (hint.key == keys[i]) found[i] = hint;
  }
  return found;
}

void PlaceHints::Note(std::span<const Hint> hints) {
  if (hints.empty()) return;
  base::MutexLock lock(mu_);
  if (hints_.empty()) hints_.resize(kHints);
  for (const Hint& hint : hints) hints_[hint.key % kHints] = hint;
}

void PlaceHints::Forget(uint64_t key) {
  base::MutexLock lock(mu_);
  if (hints_.empty()) return;
  Hint& hint = hints_[key % kHints];
  if (hint.key == key) hint = {};
}

}  // namespace mooncake::client
